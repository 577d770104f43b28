"""Models of Hugging Face's transformers under jit: loss and all gradients are those of plain torch.

Tiny ones, made from a configuration: nothing is downloaded. Their code asks `torch.compiler.is_compiling()` before it
reads a mask's values, and holds its parameters by several names.
"""

import pytest
import torch

import tinyshard as ts
from tinyshard import P

pytestmark = [pytest.mark.usefixtures("local"), pytest.mark.whole]

BATCH, LENGTH, WORDS = 8, 8, 64
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}

# model -> its class, its configuration, and which parameters tensor parallelism cuts along which dim
MODELS = {
    "GPT2": (
        "GPT2LMHeadModel",
        {"n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 4, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
        | {"bos_token_id": 0, "eos_token_id": 0},
        {"c_attn.weight": 1, "c_attn.bias": 0, "c_fc.weight": 1, "c_fc.bias": 0, "c_proj.weight": 0},
    ),
    "Bert": (
        "BertForMaskedLM",
        SIZES | {"max_position_embeddings": 16, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0},
        {f"{name}.{part}": 0 for name in ("query", "key", "value", "intermediate.dense") for part in ("weight", "bias")}
        | {"output.dense.weight": 1},
    ),
    "Llama": (
        "LlamaForCausalLM",
        SIZES | {"num_key_value_heads": 4, "max_position_embeddings": 16},
        {f"{name}_proj.weight": 0 for name in ("q", "k", "v", "gate", "up")}
        | {"o_proj.weight": 1, "down_proj.weight": 1},
    ),
}


@pytest.fixture(scope="module")
def local():
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


@pytest.fixture
def batch():
    words = torch.randint(1, WORDS, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[::2, -3:] = 0  # every other sentence is shorter
    return {"input_ids": words, "attention_mask": mask, "labels": words.masked_fill(mask == 0, -100)}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_of_a_model_are_plain_torchs_in_dp_and_dp_x_tp(name, attention, batch):
    transformers = pytest.importorskip("transformers")
    kind, sizes, cut = MODELS[name]
    config = getattr(transformers, f"{name}Config")(vocab_size=WORDS, attn_implementation=attention, **sizes)
    torch.manual_seed(0)
    model = getattr(transformers, kind)(config).train()
    wanted = model(**batch).loss
    wanted.backward()
    params = {k: x.detach() for k, x in model.named_parameters()}
    assert any(k.endswith(tuple(cut)) for k in params)

    def loss(params, batch):
        return torch.func.functional_call(model, params, kwargs=batch).loss

    mesh = ts.make_mesh((2, 4), ("data", "model"))
    rows = {k: ts.device_put(x, ts.NamedSharding(mesh, P("data"))) for k, x in batch.items()}
    parallel = {k: ts.device_put(x, ts.NamedSharding(mesh, spec_of(k, cut))) for k, x in params.items()}
    step = ts.jit(ts.value_and_grad(loss))
    for weights, data in ((params, batch), (params, rows), (parallel, rows)):
        value, slopes = ts.device_get(step(weights, data))
        torch.testing.assert_close(value, wanted.detach(), rtol=1e-5, atol=1e-5)
        for k, x in model.named_parameters():
            torch.testing.assert_close(slopes[k], x.grad, rtol=1e-5, atol=1e-5, msg=lambda said, k=k: f"{k}: {said}")


def spec_of(name, cut):
    """Where tensor parallelism has a parameter: whole, or one of its dims in parts."""
    dim = next((dim for end, dim in cut.items() if name.endswith(end)), None)
    return P() if dim is None else P(*[None] * dim, "model")
