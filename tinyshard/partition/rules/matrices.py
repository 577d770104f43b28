"""Products, and ops on the matrices of a batch."""

from __future__ import annotations

from tinyshard.partition.rule import Rule
from tinyshard.partition.rules.call import Call, Row, singles, tail, written


def outer(call: Call) -> Rule:
    """addr: the added tensor is broadcast."""
    dims = singles("ij")
    return call.rule([tail(dims, len(call.shape)), dims[:1], dims[1:]], [dims])


def solved(call: Call) -> Rule:
    """A x = b, of a vector or a matrix b for each matrix A."""
    a, b = call.shapes
    is_vector = len(b) == 1 or (len(b) == len(a) - 1 and b == a[:-1])
    right = "... _" if is_vector else "... _ _"
    return call.text(f"... _ _, {right} -> {right}, ... _ _, ... _, ...")


ROWS: dict[str, Row] = {
    # products
    "mm": "i k, k j -> i j +k",
    "bmm": "b i k, b k j -> b i j +k",
    "mv": "i k, k -> i +k",
    "dot vdot": "k, k -> +k",
    "addr": outer,
    "_cdist_forward": "... p [k], ... r [k] -> ... p r",
    # one operand
    "tril triu": "... _ _ -> ... _ _",
    "cholesky cholesky_inverse linalg_matrix_exp": "... _ _ -> ... _ _",
    "linalg_inv_ex linalg_cholesky_ex": "... _ _ -> ... _ _, ...",
    "linalg_qr": "... _ _ -> ... _ _, ... _ _",
    "linalg_lu_factor_ex": "... _ _ -> ... _ _, ... _, ...",
    "linalg_ldl_factor_ex": "... _ _ -> ... _ _, ... _, ...",
    "linalg_lu": "... _ _ -> ... _ _, ... _ _, ... _ _",
    "linalg_eig": "... _ _ -> ... _, ... _ _",
    "geqrf": "... _ _ -> ... _ _, ... _",
    "_linalg_det": "... _ _ -> ..., ... _ _, ... _",
    "_linalg_slogdet": "... _ _ -> ..., ..., ... _ _, ... _",
    "_linalg_eigh": "... _ _ -> ... _, ... _ _",
    "_linalg_svd": "... _ _ -> ... _ _, ... _, ... _ _",
    "_linalg_check_errors": "... -> ",  # each device checks what it computed
    "trace": written("_ _ -> ", passes="summed"),  # the diagonal of a block of rows is not that of the matrix
    # several
    "linalg_pinv.atol_rtol_tensor": "... _ _, ..., ... -> ... _ _",
    "linalg_solve_triangular": "... _ _, ... _ _ -> ... _ _",
    "_linalg_solve_ex": solved,
    "cholesky_solve": "... _ _, ... _ _ -> ... _ _",
    "triangular_solve": "... _ _, ... _ _ -> ... _ _, ... _ _",
    "linalg_lu_solve linalg_ldl_solve ormqr": "... _ _, ... _, ... _ _ -> ... _ _",
    "linalg_householder_product": "... _ _, ... _ -> ... _ _",
    "lu_unpack": "... _ _, ... _ -> ... _ _, ... _ _, ... _ _",
}
