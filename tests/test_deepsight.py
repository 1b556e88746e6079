"""DeepSight: output layers, answers to noise, clusters of both, and what is left out."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from rules import answer, floats, kept, view_of

import fedbench
from fedbench.core.errors import ConfigError, Incompatible
from fedbench.core.rng import Key
from fedbench.core.trees import Layout
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.scenario import Scenario
from fedbench.models.models import LeNet5
from fedbench.models.network import ConvNet
from fedbench.payload import FloatVectors
from fedbench_defenses import deepsight
from fedbench_defenses.deepsight import DeepSight, division_differences, output_layer

QUICK = DeepSight(samples=50)
SMALL: dict[str, Any] = {"model": "micro", "clients": 20, "per_round": 20, "partition": "iid"}
SMALL |= {"rounds": 15, "eval_every": 1, "attack": "model-replacement"}


def test_ddifs_are_means_over_all_samples_of_ratios_of_probabilities() -> None:
    # Logits are w x. The global model answers (1/2, 1/2), the first client (3/4, 1/4) to log 3:
    # ratios (1, 1), (3/2, 1/2), (3/2, 1/2). A mean of the means of batches would give 5/4 and 3/4,
    # one divided by the other way round (7/9, 5/3).
    network = ConvNet((1, 1, 1), (), (), 2)
    models = {"fc1": torch.tensor([[[0.0], [0.0]], [[1.0], [0.0]], [[0.0], [0.0]]])}
    noise = [torch.zeros(1, 1, 1, 1), torch.full((2, 1, 1, 1), math.log(3))]
    ddifs = division_differences(network, models, noise)
    torch.testing.assert_close(ddifs, torch.tensor([[4 / 3, 2 / 3], [1, 1]]).double())


def test_every_set_of_noise_has_as_many_images_and_none_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deepsight, "BATCH", 4)
    sets = [
        torch.cat([*deepsight.noise_images(Key(seed), 10, (3, 2, 2), torch.device("cpu"))])
        for seed in (0, 0, 1)
    ]
    assert sets[0].shape == (10, 3, 2, 2)
    assert len({tuple(image.flatten().tolist()) for image in sets[0]}) == 10
    assert torch.equal(sets[0], sets[1])
    assert not torch.equal(sets[0], sets[2])


def test_the_output_layer_is_the_last_of_weights_with_its_bias_if_it_has_one() -> None:
    network = LeNet5().build((1, 28, 28), 10)
    layout = Layout.of(network.shapes)
    x = torch.arange(2.0 * layout.d).reshape(2, -1)
    tree = layout.unflatten(x)
    weights, bias = output_layer(torch.cat([x, x[:, :5]], dim=1), layout, network)
    assert torch.equal(weights, tree["fc2"])
    assert bias is not None
    assert torch.equal(bias, tree["fc2.bias"])
    plain = ConvNet((1, 1, 1), (), (2,), 3)
    assert output_layer(torch.zeros(4, 8), Layout.of(plain.shapes), plain)[1] is None
    with pytest.raises(ConfigError, match="DeepSight's output layer fc1 must be"):
        output_layer(x, Layout.of({"fc1": (9, 3)}), ConvNet((1, 1, 1), (), (), 3))


def rows(*lengths: float) -> list[list[float]]:
    """Rows that move all four labels, of these norms."""
    return [[x / 2, -x / 2, x / 2, -x / 2] for x in lengths]


def test_models_that_learned_one_label_are_left_out_and_their_norms_count() -> None:
    # NEUPs 1/4 each against one of 1: exceedings 4 and 1, at most half of the median 4. The median
    # norm of all is 4, to which the last benign row is clipped: (1 + 1 + 1 + 2 + 2) / 5. The median
    # of those left is 2 and would give 1; without a clip it would be 1.8.
    received = floats(*rows(2, 2, 2, 4, 8), [10, 0, 0, 0], [10, 0, 0, 0])
    view = view_of(received)
    out = answer(QUICK, received, view)
    torch.testing.assert_close(out, torch.tensor([1.4, -1.4, 1.4, -1.4]))
    assert kept(view) == [True] * 5 + [False] * 2
    assert view.findings.notes["suspicious"] == 2


def test_a_suspicious_row_stays_in_a_cluster_of_many_that_are_not() -> None:
    # One row of four like the others has exceedings 2 of at most 4: [2, 2, .5, .5] has the NEUPs
    # 8/17, 8/17, 1/34, 1/34. Of four rows it is a quarter, of three a third, which is too much.
    alike = [[2.0, 2.0, 1.9, 1.9]] * 3 + [[2.0, 2.0, 0.5, 0.5]]
    loose = dataclasses.replace(QUICK, tau=0.3)
    for rule, few, stay in ((loose, alike, [True] * 4), (loose, alike[1:], [False] * 3)):
        received = floats(*few)
        view = view_of(received)
        labels = torch.zeros(len(few), dtype=torch.int64)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(deepsight, "clusters", lambda distances, smallest, labels=labels: labels)
            answer(rule, received, view)
        assert view.findings.notes["suspicious"] == 1
        assert kept(view) == stay


def test_where_no_cluster_is_accepted_the_model_stays() -> None:
    received = floats([0, 0, 0, 0], [0, 0, 0, 0], [torch.nan, 0, 0, 0])
    view = view_of(received)
    assert answer(QUICK, received, view).tolist() == [0, 0, 0, 0]
    assert kept(view) == [False] * 3
    assert view.findings.notes["fell_back"] == "no cluster accepted"


def test_d23_rows_of_no_cluster_are_clusters_of_their_own() -> None:
    # Two pairs, and two rows far from all and from each other.
    x = torch.tensor([[0.0], [0.1], [5.0], [5.1], [50.0], [-70.0]]).double()
    labels = deepsight.clusters(deepsight.euclidean(x), 2)
    assert len(set(labels.tolist())) == 4
    assert labels[0] == labels[1] != labels[2] == labels[3]
    spoilt = torch.tensor([[0.0], [torch.nan], [0.1], [torch.inf]]).double()
    assert len(set(deepsight.clusters(deepsight.euclidean(spoilt), 2).tolist())) == 3
    assert deepsight.clusters(torch.zeros(1, 1), 2).tolist() == [0]


def test_ties_do_not_depend_on_the_order_of_the_clients() -> None:
    # Half of the rows move one label only, and share clusters with each other in some parts.
    x = Key(1).fold("t").normal(8, 4) * torch.tensor([[1, 0.1, 0.1, 0.1]] * 4 + [[1.0] * 4] * 4)
    x = (2 * x).round() / 2
    answers = set()
    for i in range(4):
        order = Key(1).fold("p", i).permutation(8)
        received = FloatVectors(x[order])
        view = dataclasses.replace(view_of(received), broadcast=FloatVectors(x[:1]))
        answer(DeepSight(samples=8, seeds=1), received, view)
        rows_kept = torch.tensor(kept(view))[order.argsort()].tolist()
        answers.add((view.findings.notes["clusters"], *rows_kept))
    assert len(answers) == 1


def test_deepsight_is_for_servers_that_add_the_answer_to_the_weights() -> None:
    resolve(Scenario.of(**SMALL | {"protocol": "topk", "defense": "deepsight"}))
    resolve(Scenario.of(**SMALL | {"protocol": "fedmrn", "defense": "nnm:f=1+deepsight"}))
    for protocol in ("fedpm", "signsgd", "skellam", "fedsparse"):
        with pytest.raises(Incompatible, match="which is no update of them"):
            resolve(Scenario.of(**SMALL | {"protocol": protocol, "defense": "deepsight"}))
    mixed = Scenario.of(**SMALL | {"protocol": "signsgd", "defense": "nnm:f=1+deepsight"})
    with pytest.raises(Incompatible, match="to which the server adds its answer, but signsgd"):
        resolve(mixed)


@pytest.mark.slow
def test_deepsight_keeps_out_the_backdoor_that_works_under_the_mean() -> None:
    # Model replacement, seeds 0 and 1: the mean succeeds up to 1.0, DeepSight leaves .12 to .14.
    for seed in (0, 1):
        worst = {}
        for defense in ("mean", "deepsight:samples=100"):
            record = fedbench.play(Scenario.of(**SMALL, defense=defense, seed=seed), device="cpu")
            successes = [r.success for r in record.rounds[-2:] if r.success is not None]
            worst[defense] = max(successes)
        assert worst["mean"] > 0.6
        assert worst["deepsight:samples=100"] < 0.3
        assert record.result.accuracy > 0.75
