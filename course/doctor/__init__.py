"""What `tinyshard doctor` looks at: the machine, and the software on it; each look is a function of its own."""
