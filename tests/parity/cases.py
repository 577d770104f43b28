"""What is drawn from JAX and from ts.random alike: plain data, read by `record.py` and by the test.

A key is (seed, numbers folded in). A list among the arguments is a tensor; names are those of both libraries.
"""

MODES = (True, False)
KEYS = ((42, ()), (0, ()), (-3, ()), (2**31 + 5, ()), (7, (1, 2**32 - 1)))
SHAPES = ((), (1,), (2,), (7,), (24,), (33,), (3, 5), (4, 6), (2, 3, 4), (3, 3, 3), (0,), (2, 0))
FLOATS = ("float32", "float16", "bfloat16")

_ONE = (42, (3,))
_P = [0.1, 0.0, 0.4, 0.2, 0.3]
_LOGITS = [[0.0, 1.0, -1.0, 2.0], [3.0, 0.5, 0.25, -2.0], [0.0, 0.0, 0.0, 0.0]]


def _cases():
    for key in KEYS:
        for shape in SHAPES:
            yield "bits", key, (("shape", shape),)
            yield "uniform", key, (("shape", shape),)
            yield "normal", key, (("shape", shape),)
            yield "randint", key, (("shape", shape), ("minval", -7), ("maxval", 1000))
        yield "split", key, ()
        for number in (1, 5, (3,), (2, 3)):
            yield "split", key, (("num", number),)
        for number in (0, 1, 2**31, 2**32 - 1):
            yield "fold_in", key, (("data", number),)
        for function in ("exponential", "gumbel", "laplace", "cauchy", "logistic"):
            yield function, key, (("shape", (33,)),)
        yield "truncated_normal", key, (("lower", -2.0), ("upper", 1.5), ("shape", (33,)))
        yield "bernoulli", key, (("p", 0.3), ("shape", (33,)))
        yield "permutation", key, (("x", 17),)
        yield "categorical", key, (("logits", _LOGITS),)
    for shape in SHAPES:
        for dtype in ("uint8", "uint16"):
            yield "bits", _ONE, (("shape", shape), ("dtype", dtype))
        for dtype in FLOATS[1:]:
            yield "uniform", _ONE, (("shape", shape), ("dtype", dtype))
            yield "normal", _ONE, (("shape", shape), ("dtype", dtype))
    for low, high in ((-1.3, 2.7), (0.1, 0.3), (5.0, 6.0)):
        yield "uniform", _ONE, (("shape", (500,)), ("minval", low), ("maxval", high))
    yield "uniform", _ONE, (("shape", (4, 3)), ("minval", [0.0, 1.0, -2.0]), ("maxval", [[1.0], [2.0], [7.0], [9.1]]))
    yield "normal", _ONE, (("shape", (5000,)),)
    for dtype in FLOATS[1:]:
        for function in ("exponential", "gumbel", "laplace", "logistic"):
            yield function, _ONE, (("shape", (40,)), ("dtype", dtype))
    for low, high in ((0, 2**31 - 1), (-(2**31), 2**31 - 1), (5, 5), (0, 2**16), (-(2**31), 0)):
        yield "randint", _ONE, (("shape", (40,)), ("minval", low), ("maxval", high))
    for dtype, low, high in (("int8", -128, 128), ("uint8", 0, 256), ("int16", -5, 9), ("uint8", 3, 17)):
        yield "randint", _ONE, (("shape", (40,)), ("minval", low), ("maxval", high), ("dtype", dtype))
    yield "randint", _ONE, (("shape", (4, 3)), ("minval", [0, -5, 7]), ("maxval", [9, 5, 3]))
    for p in (0.5, 0.0, 1.0):
        yield "bernoulli", _ONE, (("p", p), ("shape", (5, 7)))
    yield "bernoulli", _ONE, (("p", [0.1, 0.5, 0.9]),)
    yield "bernoulli", _ONE, (("p", 0.25), ("shape", (40,)), ("mode", "high"))
    for size in (0, 1, 2, 1000, 4097):
        yield "permutation", _ONE, (("x", size),)
    matrix = [[10 * i + j for j in range(5)] for i in range(4)]
    for axis in (0, 1):
        yield "permutation", _ONE, (("x", matrix), ("axis", axis))
        yield "permutation", _ONE, (("x", matrix), ("axis", axis), ("independent", True))
    yield "choice", _ONE, (("a", 5), ("shape", (9,)))
    yield "choice", _ONE, (("a", 5), ("shape", (2, 2)), ("replace", False))
    yield "choice", _ONE, (("a", 5), ("shape", (40,)), ("p", _P))
    yield "choice", _ONE, (("a", 5), ("shape", (3,)), ("replace", False), ("p", _P))
    yield "choice", _ONE, (("a", matrix), ("shape", (6,)), ("axis", 1))
    yield "choice", _ONE, (("a", matrix), ("shape", (2,)), ("replace", False))
    yield "categorical", _ONE, (("logits", _LOGITS), ("axis", 0))
    yield "categorical", _ONE, (("logits", _LOGITS), ("shape", (5, 3)))
    yield "categorical", _ONE, (("logits", _LOGITS), ("shape", (2, 3)), ("replace", False))
    yield "categorical", _ONE, (("logits", _LOGITS), ("mode", "high"))
    yield "gumbel", _ONE, (("shape", (40,)), ("mode", "high"))
    yield "truncated_normal", _ONE, (("lower", [-1.0, 0.0, 2.0]), ("upper", [1.0, 0.5, 3.0]), ("shape", (5, 3)))
    yield "rademacher", _ONE, (("shape", (9,)),)
    for function, parameters in _WITH_PARAMETERS:
        yield function, _ONE, (*parameters, ("shape", (33,)))
    for function, parameters in _OF_TENSORS:
        yield function, _ONE, parameters


_WITH_PARAMETERS = (
    ("maxwell", ()),
    ("lognormal", (("sigma", 0.5),)),
    ("rayleigh", (("scale", 0.5),)),
    ("double_sided_maxwell", (("loc", 1.0), ("scale", 2.0))),
    ("pareto", (("b", 3.0),)),
    ("weibull_min", (("scale", 2.0), ("concentration", 1.5))),
    ("triangular", (("left", -1.0), ("mode", 0.5), ("right", 2.0))),
    ("wald", (("mean", 2.0),)),
    ("geometric", (("p", 0.2),)),
    ("gamma", (("a", 2.0),)),
    ("gamma", (("a", 0.3),)),
    ("loggamma", (("a", 0.01),)),
    ("beta", (("a", 2.0), ("b", 0.5))),
    ("chisquare", (("df", 3.0),)),
    ("f", (("dfnum", 3.0), ("dfden", 4.0))),
    ("t", (("df", 3.0),)),
    ("generalized_normal", (("p", 1.5),)),
    ("poisson", (("lam", 3.0),)),
    ("poisson", (("lam", 50.0),)),
    ("binomial", (("n", 10.0), ("p", 0.3))),
    ("binomial", (("n", 1000.0), ("p", 0.3))),
    ("dirichlet", (("alpha", [0.5, 1.0, 2.0]),)),
    ("ball", (("d", 3),)),
    ("ball", (("d", 3), ("p", 1.0))),
    ("multivariate_normal", (("mean", [1.0, 2.0]), ("cov", [[2.0, 0.5], [0.5, 1.0]]))),
)
_NAN, _INF = float("nan"), float("inf")
_OF_TENSORS = (
    ("gamma", (("a", [0.1, 1.0, 9.0]), ("shape", (5, 3)))),
    ("loggamma", (("a", [[0.001], [30.0]]),)),
    ("poisson", (("lam", [0.0, -1.0, 2.0, 30.0, _NAN]),)),
    ("binomial", (("n", [5.0, 100.0, -1.0, _INF, 7.5, 3.0]), ("p", [0.2, 0.9, 0.5, 0.5, 0.5, 1.5]))),
    ("multinomial", (("n", 20.0), ("p", [0.2, 0.3, 0.5]))),
    ("multinomial", (("n", 200.0), ("p", [0.2, 0.3, 0.5, 0.0]), ("shape", (5, 4)))),
    ("orthogonal", (("n", 4), ("shape", (3,)))),
    ("orthogonal", (("n", 4), ("m", 2))),
    ("orthogonal", (("n", 2), ("m", 5))),
    ("geometric", (("p", [0.1, 0.9, 1.0]),)),
)
CASES = tuple({repr(case): case for case in _cases()}.values())
