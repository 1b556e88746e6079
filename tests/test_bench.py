"""The bench of codecs: its estimates by hand, its choice, and what the command prints."""

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from fedbench.api import Memory, Shared
from fedbench.cli import bench as shown
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.experiment.prepare import prepare
from fedbench.payload import FloatVectors, Payload
from fedbench.probes import codec_bench, codecs
from fedbench.probes.codec_bench import Bench, chosen, misfit, source
from fedbench.probes.codecs import CodecPlan, CodecResult, Distortion, ErrorSums, MeasuredCodec
from fedbench.protocols.compressed import CompressedUpdates
from fedbench.protocols.fedavg import FedAvg
from fedbench.testing import NETWORK

SHARED = Shared(NETWORK, 0, torch.device("cpu"))
D = SHARED.layout.d
Command = Callable[..., tuple[int, str, str]]
DIGITS = ["bench", "codecs", "--dataset", "digits", "--threads", "1", "--seeds", "3"]


@dataclass(frozen=True, kw_only=True)
class Sending(FedAvg):
    """Sends what a function makes of the updates, the keys and what clients remember."""

    made: Callable[[Tensor, Sequence[Key], Sequence[Memory]], Payload]

    def message(
        self, shared: Shared, updates: Tensor, keys: Sequence[Key], memory: Sequence[Memory]
    ) -> tuple[Payload, Sequence[Memory]]:
        return self.made(updates, keys, memory), memory


def dithered(offset: float = 0.0) -> MeasuredCodec:
    """``x``, plus ``offset |x|`` in its first coordinate, and a sign of ``|x|`` in all together."""

    def made(x: Tensor, keys: Sequence[Key], _: Sequence[Memory]) -> Payload:
        noise = torch.stack([key.signs(D) for key in keys]) / math.sqrt(D)
        noise[:, 0] += offset
        return FloatVectors(x + x.norm(dim=1, keepdim=True) * noise)

    return MeasuredCodec("dithered", Sending(made=made))


@lru_cache(maxsize=8)
def drawn(seed: int) -> int:
    DRAWN.append(seed)
    return seed


@lru_cache(maxsize=8)
def table(width: int) -> int:
    DRAWN.append(-width)
    return width


DRAWN: list[int] = []


@dataclass(frozen=True, eq=False)
class Remembering(FloatVectors):
    """Its values draw the numbers of a seed, and look up a table."""

    def values(self) -> Tensor:
        drawn(int(self.x[0, 0]))
        table(self.x.shape[1])
        return self.x


@dataclass(frozen=True, eq=False)
class Backwards(FloatVectors):
    """As wide as the update, but its columns are others."""

    aligned = False


def gaussian(s: int) -> Tensor:
    return codec_bench.drawn("gaussian", Key(7).fold(s), D)


def measured(text: str, inputs: Callable[[int], Tensor] = gaussian, **plan: int) -> CodecResult:
    codec = MeasuredCodec(text, registry.load("protocol", text))
    scale = codecs.scale_of(codec.protocol, SHARED, inputs(0))
    return codecs.measure(codec, "gaussian", inputs, SHARED, CodecPlan(**plan), scale)


def lost(one: CodecResult) -> Distortion:
    assert one.distortion is not None
    return one.distortion


def test_the_bias_is_that_of_the_pairs_of_draws_by_hand() -> None:
    x = torch.tensor([1.0, 2.0])
    # Errors (1, 0), (0, 2), (3, 1): <e_r, e_q> are 0, 3, 2, whose mean is 5/3.
    rows = x + torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
    draws = ErrorSums.of(x, [rows[:2], rows[2:]])
    assert draws.norm == 5
    assert draws.squares == [1, 4, 10]
    assert draws.along == [1, 4, 5]
    assert codecs.bias_squared(draws) == pytest.approx(5 / 3, rel=1e-12)
    # |mean - x|^2 is 25/9, and the spread around the mean 15 - 25/3 = 20/3; over R (R - 1), 10/9.
    mean = rows.double().mean(dim=0)
    spread = float((rows - mean).square().sum())
    other = float((mean - x).square().sum()) - spread / (3 * 2)
    assert codecs.bias_squared(draws) == pytest.approx(other, rel=1e-12)


@pytest.mark.slow
def test_a_codec_without_bias_is_not_called_biased_and_a_small_bias_is_seen() -> None:
    def found(plan: CodecPlan, offset: float = 0.0) -> Distortion:
        return lost(codecs.measure(dithered(offset), "gaussian", gaussian, SHARED, plan, "kept"))

    fair, leaning = found(CodecPlan(20, 4)), found(CodecPlan(20, 4), 0.7)
    for one in (fair, found(CodecPlan(3, 2, clients=4))):  # clients' draws have keys of their own
        assert not one.biased  # of equal draws all error is bias
        assert one.nmse == pytest.approx(1.0, abs=1e-6)  # signs are of one length
    assert fair.bias_limit < 0.7
    assert leaning.biased
    assert leaning.bias == pytest.approx(0.7, abs=0.1)  # of a mean of 4 draws the error is 0.5
    assert leaning.nmse == pytest.approx(1.49, abs=0.1)


def test_what_draws_nothing_is_biased_by_all_that_it_loses_however_inputs_differ() -> None:
    # NMSE of 0.01 to 0.99: a test of the bias itself, instead of its share, would see noise.
    norms = [ErrorSums(1.0, 4 * share, [share, share], [-share] * 2) for share in (0.01, 0.2, 0.99)]
    found = codecs.distortion(norms)
    assert found.biased
    assert found.bias == pytest.approx(math.sqrt(0.4), rel=1e-12)
    assert found.bias_limit < 1e-6
    assert found.nmse_max == 0.99
    assert found.gain == pytest.approx(0.6)


def test_the_test_of_the_bias_is_students_by_hand() -> None:
    # Biases 0.8, -0.4 and 0.8 of squared errors of 4: shares 0.2, -0.1, 0.2, whose mean 0.1 has a
    # standard error of 0.1. Student's t with 2 degrees exceeds 22.327 with probability 0.001.
    inputs = [ErrorSums(1.0, total, [4.0, 4.0], [0.0, 0.0]) for total in (9.6, 7.2, 9.6)]
    found = codecs.distortion(inputs)
    assert not found.biased
    assert found.bias == pytest.approx(math.sqrt(0.4))
    assert found.bias_limit == pytest.approx(math.sqrt(2.2327 * 4), rel=1e-4)
    # Shares of 1 less 0, 0.05 and 0.1 have a mean of 0.95 and a standard error of 0.0289.
    inputs = [ErrorSums(1.0, 8 + 8 * share, [4.0, 4.0], [0.0, 0.0]) for share in (1.0, 0.95, 0.9)]
    assert codecs.distortion(inputs).biased


def test_topk_loses_what_it_does_not_send_and_fedavg_nothing() -> None:
    # 1 .. 102 with every other sign turned, half kept: 52 .. 102.
    x = torch.arange(1.0, D + 1) * (1 - 2 * (torch.arange(D) % 2))
    dropped = sum(i * i for i in range(1, 52)) / sum(i * i for i in range(1, D + 1))
    one = measured("topk:k=0.5", lambda s: x, seeds=3)
    found = lost(one)
    expected = [dropped, dropped, math.sqrt(dropped), 1 - dropped]
    assert [found.nmse, found.nmse_max, found.bias, found.gain] == pytest.approx(expected, rel=1e-6)
    assert found.biased
    assert one.bits == pytest.approx((32 * 51 + D) / D)
    whole = measured("fedavg", seeds=3)
    assert lost(whole) == Distortion(0.0, 0.0, 0.0, biased=False, bias_limit=0.0, gain=1.0)
    assert whole.bits == 32
    assert min(whole.encode, whole.decode) > 0


def test_a_sign_has_no_scale_and_noise_has_its_own() -> None:
    one = measured("signsgd", seeds=3)
    assert one.distortion is None
    assert one.bits == 1
    scales = {
        "topk": "kept",
        "signsgd": "lost",
        "fedmrn": "fixed",
        "fedmrns": "fixed",
        "fedmrn:magnitude=1e6": "fixed",  # it sends nothing but zeros
        "fedmrns:magnitude=1e-4": "fixed",  # it sends nothing but signs
    }
    for text, scale in scales.items():
        assert codecs.scale_of(registry.load("protocol", text), SHARED, gaussian(0)) == scale, text


def test_fedmrn_has_its_gain_on_updates_within_its_noise() -> None:
    # E[u_hat] = (u - u^2 / 2a) / 2 for 0 <= u <= a (M4): 1/2 - E|u|^3 / (4 a E[u^2]), and of a
    # standard Gaussian E|u|^3 is 1.596. A gain of 100 draws has a standard error of 0.016.
    inside = lost(measured("fedmrn:magnitude=8.0", seeds=50))
    assert inside.gain == pytest.approx(0.5 - 1.596 / 32, abs=0.05)


def test_the_server_draws_again_what_the_client_has_cached_and_keeps_its_tables() -> None:
    def caching(updates: Tensor, *_: Any) -> Payload:
        payload = Remembering(updates)
        payload.values()
        return payload

    DRAWN.clear()
    for seed in (3, 4, 5):
        codecs.send(Sending(made=caching), SHARED, torch.full((1, D), float(seed)), [Key(0)])
    assert [s for s in DRAWN if s > 0] == [3, 3, 4, 4, 5, 5]
    assert DRAWN.count(-D) == 2  # the first message filled the table, so it was emptied once


def test_error_feedback_starts_from_nothing() -> None:
    fresh, plain = measured("topk:error_feedback=true", seeds=3), measured("topk", seeds=3)
    assert (fresh.error_feedback, plain.error_feedback) == (True, False)
    assert fresh.distortion == plain.distortion


def test_every_installed_protocol_is_measured_or_has_a_reason() -> None:
    with pytest.raises(ConfigError, match="fsl must compress dense updates of the weights, but"):
        chosen(["fedavg", "fsl"], SHARED)
    both, none = chosen(["topk:k=0.1", "fedprox", "topk:k=0.1"], SHARED)
    assert ([codec.name for codec in both], none) == (["topk:k=0.1", "fedprox"], {})
    fitting, others = chosen(None, SHARED)
    names = {registry.split(codec.name)[0] for codec in fitting}
    assert names | {registry.split(text)[0] for text in others} == set(registry.names("protocol"))
    assert names >= {"fedavg", "topk", "signsgd", "fedmrn", "fedmrns"}
    assert others["fsl"] == "updates are scores"
    assert others["fedpm"] == "updates are probabilities"
    assert others["fedprox"] == "messages are those of fedavg"
    assert "fail" not in " ".join(others.values())
    assert set(others) & set(codec_bench.VARIANTS) == set()  # the list names what exists and fits
    for name in registry.names("protocol"):
        if issubclass(registry.plugin("protocol", name), CompressedUpdates):
            assert misfit(registry.load("protocol", name), SHARED) is None, name


def test_what_does_not_fit_says_why() -> None:
    network = registry.load("model", "cnn4").build((1, 16, 16), 10)
    normalised = Shared(network, 0, torch.device("cpu"))
    sign = registry.load("protocol", "signsgd")
    assert misfit(sign, SHARED) is None
    assert misfit(sign, normalised) == "messages cannot carry the statistics of batch norm"
    assert misfit(registry.load("protocol", "topk"), normalised) is None
    turned = Sending(made=lambda updates, keys, memory: Backwards(updates.flip(1)))
    assert misfit(turned, SHARED) == "values are no update of the parameters"
    forgetful = Sending(made=lambda u, keys, memory: FloatVectors(u + memory[0]["received"]))
    assert misfit(forgetful, SHARED) == "messages need what a client remembers of its training"


def test_inputs_are_what_they_are_called() -> None:
    d = 1 << 16
    normal = codec_bench.drawn("gaussian", Key(1), d)
    assert float(normal.std()) == pytest.approx(1.0, abs=0.02)
    heavy = codec_bench.drawn("lognormal", Key(1), d)
    assert float((heavy > 0).float().mean()) == pytest.approx(0.5, abs=0.02)
    assert float(heavy.abs().log().mean()) == pytest.approx(0.0, abs=0.03)
    assert float(heavy.abs().log().std()) == pytest.approx(1.0, abs=0.02)
    assert float((heavy.abs().log() * heavy.sign()).mean()) == pytest.approx(0.0, abs=0.03)


def test_without_the_archive_the_embedded_images_are_used_and_it_is_said(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("data")
    monkeypatch.setenv("FEDBENCH_DATA", str(folder))
    name, note = codec_bench.default_dataset()
    assert name == "mnist-5k"
    assert note is not None
    assert f"fashion-mnist is not in {folder}" in note
    (folder / "fashion-mnist.npz").touch()
    assert codec_bench.default_dataset() == ("fashion-mnist", None)


def example() -> Bench:
    rows = [
        CodecResult("topk:k=0.5,error_feedback=true", "gaussian", 17.0, 120.5, 7.0, True, "kept",
                 Distortion(0.0713, 0.0716, 0.267, True, 0.0, 0.929)),
        CodecResult("drive", "gaussian", 1.0079, 7.72, 4.73, False, "kept",
                 Distortion(0.571, 0.572, 0.004, False, 0.026, 1.0)),
        CodecResult("signsgd", "gaussian", 1.0, 0.4, 0.9, False, "lost", None),
        CodecResult("fedmrn", "gaussian", 0.264, 11.0, 10.9, False, "fixed",
                 Distortion(2.89, 4.1, 0.628, True, 0.57, 0.388)),
    ]  # fmt: skip
    others = {"fsl": "updates are scores", "sfsl": "updates are scores"}
    return Bench("lenet", "digits", 151_072, "cpu", 1, CodecPlan(), rows, others, ["a note"])


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_table_fits_its_terminal_and_no_number_is_cut(width: int) -> None:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(shown.report(example(), console.options))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    for line in (
        "drive 0.571 0.572 0 (<2.6) 1.000 1.008 7.7 4.7",
        "signsgd n/a n/a n/a n/a 1.000 0.4 0.9",
        "fedmrn * 2.890 4.100 62.8 0.388 0.264 11.0 10.9",
    ):
        assert line in [" ".join(shown.split()) for shown in lines]
    words = " ".join(text.split())
    for said in (
        *("not measured: fsl, sfsl (updates are scores)", "151,072 parameters", "a note"),
        *("* of a fixed magnitude", "n/a messages without a scale"),
        "memory topk:k=0.5,error_feedback=true: measured without a past",
    ):
        assert said in words


def test_the_formats_for_programs_and_pages_hold_all_of_it() -> None:
    bench = example()
    parsed = json.loads(shown.json_text(bench))
    assert parsed["plan"] == {"seeds": 10, "draws": 2, "clients": 1}
    assert parsed["others"]["sfsl"] == "updates are scores"
    assert parsed["rows"][1]["bias_limit"] == 0.026
    assert parsed["rows"][2]["nmse"] is None
    lines = list(csv.DictReader(io.StringIO(shown.csv_text(bench))))
    assert [line["codec"] for line in lines] == [row.codec for row in bench.rows]
    assert float(lines[1]["encode_ms"]) == 7.72
    assert lines[2]["nmse"] == ""
    page = shown.page(bench)
    assert "| drive | 0.571 | 0.572 | 0 (\\<2.6) | 1.000 | 1.008 | 7.7 | 4.7 |" in page
    assert "| fedmrn \\* |" in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert {line.count("|") - line.count("\\|") for line in rows} == {9}


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command without a hand on this process's allocator."""
    monkeypatch.setenv("FEDBENCH_ALLOCATOR", "system")


WRONG = {
    "-p fedagv": "--protocol 'fedagv' is not installed; did you mean 'fedavg'?",
    "-p fsl": "--protocol fsl must compress dense updates of the weights, but its updates",
    "-p topk:k=2": "TopK.k must be in (0, 1], got 2.0",
    "--seeds 2": "--seeds must be >= 3 to tell bias from noise, got 2",
    "--seeds ten": "--seeds must be a whole number, got 'ten'",
    "--draws 1": "--draws must be >= 2 to tell bias from noise, got 1",
    "--clients 0": "--clients must be >= 1, got 0",
    "--threads 0": "--threads must be >= 1, got 0",
    "--input normal": "--input must be one of gaussian, lognormal, real, got 'normal'",
    "--format xml": "--format must be table, csv, json or md, got 'xml'",
    "--model conv10": "conv10 needs images of at least 32 x 32",
    "--device tpu": "--device must be auto, cpu, cuda or mps, got 'tpu'",
}


@pytest.mark.usefixtures("quiet")
def test_what_is_wrong_is_said_in_one_line(mistake: Callable[..., str]) -> None:
    for arguments, message in WRONG.items():
        assert message in mistake(*DIGITS, *arguments.split())


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_the_command_measures_real_updates_or_the_default_list(command: Command) -> None:
    threads = torch.get_num_threads()
    options = "--threads 2 -i real -p fedavg -p signsgd --format json"
    code, out, err = command(*DIGITS, *options.split())
    assert code == 0
    assert all("the machine was busy" in line for line in err.splitlines())
    found = json.loads(out)
    assert found["parameters"] == 151_072
    rows = [(row["codec"], row["input"], row["bits"]) for row in found["rows"]]
    assert rows == [("fedavg", "real", 32), ("signsgd", "real", 1)]
    assert found["rows"][0]["nmse"] == 0
    assert found["threads"] == 2
    assert torch.get_num_threads() == threads == 1
    code, out, err = command(*DIGITS, "--format", "csv")
    assert code == 0
    lines = list(csv.DictReader(io.StringIO(out)))
    assert {line["input"] for line in lines} == set(codec_bench.INPUTS)
    for line in lines:
        assert 0 < float(line["bits"]) <= 33, line
        assert line["scale"] == "lost" or math.isfinite(float(line["nmse"])), line
    assert "fedbench: not measured: " in err
    assert codecs.CodecPlan().seeds == 10


def test_real_updates_are_those_of_clients_that_trained_and_come_again() -> None:
    inputs = source("real", prepare(codec_bench.scenario("digits", "lenet"), "cpu"))
    norms = [float(inputs(s).norm()) for s in range(6)]
    assert inputs(0).shape == (151_072,)
    assert len(set(norms[:5])) == 5
    assert norms[5] == norms[0] > 0
