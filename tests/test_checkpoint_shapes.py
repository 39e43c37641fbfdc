"""A source checkpoint that does not fit its config is refused, naming the tensor."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artifacts import HIDDEN, VOCAB, Raw, bf16, edit_json, edit_tensors, make_artifact, make_source

from workbench.checkpoint import inspect
from workbench.errors import CheckpointError
from workbench.model_card import original
from workbench.variants import Fp8Spec, GptqModelSpec, Nf4Spec, VariantSpec

Edit = Callable[[dict[str, Any]], object]
RNG = np.random.default_rng(4)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source")


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda c: c.update(vocab_size=500), "'model.embed_tokens.weight' is [512, 128]"),
        (lambda c: c.update(hidden_size=64), "must be [512, 64]"),
        (lambda c: c.update(num_hidden_layers=3), "layer 2 has no tensor (1 of 3 layers"),
        # As fast as any other, and no list of them in memory.
        (lambda c: c.update(num_hidden_layers=10**12), "(999999999998 of 1000000000000 layers"),
        (lambda c: c.update(num_hidden_layers=1), "tensors of layer 1, and config.json says 1"),
        (lambda c: c.update(intermediate_size=512), "mlp.gate_proj.weight' is [256, 128]"),
        (lambda c: c.update(num_key_value_heads=2), "self_attn.k_proj.weight' is [64, 128]"),
        (lambda c: c.update(tie_word_embeddings=False), "there is no 'lm_head.weight'"),
        (lambda c: c.update(head_dim=0), "head_dim is 0"),
        # transformers ties the output layer of a Llama only where it is told to.
        (lambda c: c.pop("tie_word_embeddings"), "(tie_word_embeddings is missing), and there is"),
    ],
)
def test_a_config_of_another_model(source: Path, edit: Edit, says: str) -> None:
    inspect(source)
    edit_json(source / "config.json", edit)
    with pytest.raises(CheckpointError) as error:
        inspect(source)
    assert says in error.value.what and error.value.where and error.value.fix


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (
            lambda t: t.update({"model.layers.1.mlp.up_proj.weight": bf16(RNG, 255, HIDDEN)}),
            "'model.layers.1.mlp.up_proj.weight' is [255, 128], and by config.json it must be",
        ),
        (lambda t: t.pop("model.embed_tokens.weight"), "no tensor of the embeddings"),
        (lambda t: t.pop("model.norm.weight"), "no tensor of the final norm"),
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "'mlp.up_proj.weight' of layer 1"),
        (
            lambda t: t.update({"lm_head.weight": bf16(RNG, VOCAB, HIDDEN)}),
            "'lm_head.weight' holds other values",
        ),
    ],
)
def test_tensors_of_another_model(source: Path, edit: Callable[[Raw], object], says: str) -> None:
    edit_tensors(source, edit)
    with pytest.raises(CheckpointError) as error:
        inspect(source)
    assert says in error.value.what


def test_a_shared_output_layer_may_be_stored_twice(source: Path) -> None:
    edit_tensors(source, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}))
    assert inspect(source).tied_embeddings


def test_layers_for_predicting_several_tokens_are_allowed(source: Path) -> None:
    edit_json(
        source / "config.json",
        lambda c: c.update(num_hidden_layers=1, num_nextn_predict_layers=1),
    )
    assert inspect(source).layers == 1


def test_a_vision_tower_has_layers_of_its_own(source: Path) -> None:
    edit_tensors(
        source, lambda t: t.update({"vision_model.encoder.layers.7.x.weight": bf16(RNG, 3, 3)})
    )
    assert inspect(source).layers == 2


@pytest.mark.parametrize("variant", [Fp8Spec(name="v"), Nf4Spec(name="v"), GptqModelSpec(name="v")])
def test_quantized_weights_are_known_without_a_config(
    source: Path, tmp_path: Path, variant: VariantSpec
) -> None:
    made = make_artifact(source, tmp_path / "made", variant)
    assert inspect(made).quantization in ("compressed-tensors", "bitsandbytes", "gptq")
    edit_json(made / "config.json", lambda c: c.pop("quantization_config"))
    assert "config.json says nothing" in str(inspect(made).quantization)


@pytest.mark.parametrize(
    ("front", "base"),
    [
        ("license: mit\nbase_model: org/name\n", "org/name"),
        ("base_model:\n- org/name\n- other\n", "org/name"),
        ('base_model: "org/name"\n', "org/name"),
        ("license: mit\n", None),
    ],
)
def test_the_card_names_the_original(tmp_path: Path, front: str, base: str | None) -> None:
    (tmp_path / "README.md").write_text(f"---\n{front}---\n# Card\n")
    assert original(tmp_path) == base
    (tmp_path / "README.md").write_text("# Card without a front matter\n")
    assert original(tmp_path) is None
