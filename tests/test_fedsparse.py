"""FedSparse: gates that are worked by hand, and messages that shrink when they close."""

import dataclasses
import math
from typing import Any, Literal

import pytest
import torch
from exchanges import exchanged, rejected, sent, shared_of
from torch import Tensor

import fedbench
from fedbench.api import Batches, Shared
from fedbench.core.errors import ConfigError, IllegalPayloadError
from fedbench.core.rng import Key
from fedbench.core.trees import Layout, Tree
from fedbench.executors.training import Schedule
from fedbench.experiment.scenario import Scenario
from fedbench.models.models import LeNet5
from fedbench.models.network import ConvNet
from fedbench.payload import GatedVectors, Payload, same
from fedbench.payload.packets import Packet
from fedbench.payload.sparse import governed
from fedbench.protocols import fedsparse
from fedbench.protocols.fedsparse import FedSparse, Gated
from fedbench.protocols.optimizers import Adam, Adamax
from fedbench.testing import check_payload, example_clients

T = 1e-3
SHARED = shared_of()
LINE = shared_of(ConvNet((1, 1, 2), (), (), 2))  # one layer (2, 2): two groups, its columns


def state_of(w: list[float], v: list[float]) -> Gated:
    """A state of `LINE` whose optimisers are new."""
    weights, thresholds = torch.tensor(w), torch.tensor(v)
    adam = Adam(lr=1.0).init(LINE.layout.unflatten(weights))
    return Gated(weights, thresholds, adam, Adamax(lr=1.0).init({"v": thresholds}))


def logit(p: float) -> float:
    return math.log(p / (1 - p))


# Two layers: a column each gate, and units 2 x 1 whose second axis counts a gate twice.
LAYERS = (((2, 2), ((1, 0, 1),)), ((1, 4), ((0, 2, 1), (1, 0, 2))))


def vectors() -> GatedVectors:
    gates = torch.tensor([[1, 0, 1], [1, 1, 0], [0, 0, 0], [1, 1, 1]]).bool()
    x = Key(0).normal(4, 8) * governed(gates, LAYERS)
    return GatedVectors(gates, x, Key(1).normal(4, 2), LAYERS)


def test_the_defaults_are_those_of_the_paper() -> None:
    # Appendix C, with the middle lambda0; Adam and Adamax have those of Kingma and Ba.
    said: dict[str, Any] = {"lr": 0.05, "threshold_lr": 1e-3}
    said |= {"server_lr": 1e-3, "server_threshold_lr": 1e-2, "lambda0": 5e-6, "ce_scale": 1e-4}
    assert FedSparse() == FedSparse(**said, drift=0.0, temperature=1e-3, epsilon=0.1)
    for kind in (Adam, Adamax):
        assert kind(lr=1.0) == kind(lr=1.0, beta1=0.9, beta2=0.999, epsilon=1e-8)


def test_a_coordinate_is_open_iff_all_its_gates_are_and_with_their_probability() -> None:
    assert vectors().is_open().int().tolist() == [
        [1, 0, 1, 0, 1, 1, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1, 1],
    ]
    chances = governed(torch.tensor([[0.5, 0.25, 0.5]]), LAYERS)
    assert chances[0].tolist() == [0.5, 0.25, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125]


def test_gated_vectors_keep_the_laws_and_weigh_what_is_open() -> None:
    payload = vectors()
    check_payload(payload)
    assert [packet.bits for packet in payload.encode()] == [32 * (k + 2) + 3 for k in (4, 4, 0, 8)]
    none = torch.zeros(2, 0)
    check_payload(GatedVectors(none.bool(), Key(0).normal(2, 3), none, (((3,), ()),)))


def test_a_gate_of_nan_and_one_that_is_half_open_are_closed_and_infinity_travels() -> None:
    payload = vectors()
    x = payload.x.clone()
    x[0, 0], x[1, 1], payload.rest[2, 0] = torch.nan, torch.inf, -torch.inf
    payload = dataclasses.replace(payload, x=x)
    check_payload(payload)
    values = payload.values()
    values[3, 0] = torch.nan
    assert payload.nearest(values).gates[3].tolist() == [False, True, True]
    values[:, 3:] = torch.nan  # NaN behind a closed gate must not stay: NaN * 0 is NaN
    payload.nearest(values).check()
    values = vectors().values()
    values[3, :3] = torch.tensor([0.5, 0.500001, 7.0])
    assert vectors().nearest(values).gates[3].tolist() == [False, True, True]


def test_what_is_behind_a_closed_gate_and_another_number_of_floats_are_rejected() -> None:
    payload = vectors()
    for value in (1.0, torch.nan):
        payload.x[2, 0] = value
        with pytest.raises(IllegalPayloadError, match="behind a closed gate"):
            payload.check()
    payload = vectors()
    full = payload.encode()[3].data
    some = payload.encode()[0].data
    wrongs = [full[:-1] + b"\x20", some[:-1] + b"\xe0", full[4:], full[:-1] + b"\xe1", b"", b"\0"]
    for wrong in wrongs:
        rejected(GatedVectors, wrong, payload.spec)
    swapped = full[:-1] + bytes([0b11100000])
    _, accepted = GatedVectors.decode([Packet.raw(swapped)], payload.spec)
    assert bool(accepted[0])


def test_theta_is_a_sigmoid_of_magnitude_above_a_positive_threshold() -> None:
    # Equation 16. Column norms are 5 and 1; softplus(0) = 0.693147; at T = 2 the logits are
    # 2.1534 and 0.1534. A threshold of v itself would give 2.5 and 0.5, rows 1.5 and 1.7.
    state = state_of([3.0, 0.0, 4.0, 1.0], [0.0, 0.0])
    logits = FedSparse(temperature=2.0).server_logits(LINE, state)
    assert logits.tolist() == pytest.approx([(5 - math.log(2)) / 2, (1 - math.log(2)) / 2])


def test_groups_are_filters_and_inputs_of_a_dense_layer_and_spare_the_last_if_told_so() -> None:
    assert FedSparse(gate_output=False).gated(SHARED).d == 15
    assert fedsparse.gating(SHARED.weights, False)[-1] == ((3, 5), ())
    conv = torch.zeros(3, 2, 2, 2)
    conv[1] = 1.0
    assert fedsparse.group_norms(conv).tolist() == pytest.approx([0, math.sqrt(8), 0])
    dense = torch.tensor([[3.0, 1.0, 0.0], [4.0, 0.0, 0.0]])
    assert fedsparse.group_norms(dense).tolist() == [5, 1, 0]


def test_weights_with_one_dimension_are_groups_of_one_and_numbers_have_none() -> None:
    w = torch.tensor([3.0, -4.0])
    assert fedsparse.group_norms(w).tolist() == [3.0, 4.0]
    assert fedsparse.gates_of(Layout.of({"a": (2,)}), True).shapes == ((2,),)
    with pytest.raises(ConfigError, match="fedsparse must have weights with groups, got the nu"):
        fedsparse.gates_of(Layout.of({"a": (2,), "b": ()}), True)


def test_a_network_without_gates_is_refused_before_it_trains() -> None:
    scenario = Scenario(protocol="fedsparse:gate_output=false", model="logistic", rounds=1)
    with pytest.raises(ConfigError, match="more layers than the last one, got the weights fc1 al"):
        fedbench.play(scenario, device="cpu")


def test_every_group_starts_with_theta_099_where_a_softplus_reaches_it() -> None:
    # S6: ||w|| = 0.0046 is just reachable, 0.0040 is not: its logit is at most 4, and comes close.
    norms = torch.tensor([30.0, 0.5, 0.0046, 0.0040, 0.0])
    v = fedsparse.initial_threshold(norms, T)
    logits = (norms - torch.nn.functional.softplus(v)) / T
    assert bool(torch.isfinite(v).all())
    assert logits[:3].tolist() == pytest.approx([logit(0.99)] * 3, abs=5e-3)
    assert logits[3:].tolist() == pytest.approx([4, 0], abs=2e-3)
    theta = torch.sigmoid(FedSparse().server_logits(SHARED, FedSparse().init(SHARED)))
    assert theta.tolist() == pytest.approx([0.99] * (3 + 12 + 5), abs=1e-4)


def test_a_gate_in_float64_takes_the_logit_of_its_draw_in_float64() -> None:
    u = torch.tensor([0.9, 0.1, 1 / 3])  # whose logits in float32 are some 1e-7 off
    log_alpha = torch.zeros(3, dtype=torch.float64)
    s = torch.sigmoid(torch.logit(u.double()) / fedsparse.BETA)
    expected = (s * (fedsparse.ZETA - fedsparse.GAMMA) + fedsparse.GAMMA).clamp(0, 1)
    assert torch.allclose(fedsparse.hard_concrete(log_alpha, u), expected, rtol=0, atol=1e-14)


def test_hard_concrete_gates_by_hand() -> None:
    # u = 1/2, log_alpha = 0: s = 1/2, z = 1.2 / 2 - 0.1. Then s = sigmoid(1.5 * 1) = 0.8176.
    u = torch.tensor([0.5, 0.5, 0.5, 0.5, 0.0, 1.0])
    z = fedsparse.hard_concrete(torch.tensor([0.0, 1.0, 6.0, -6.0, 0.0, 0.0]), u)
    assert z.tolist() == pytest.approx([0.5, 0.88109, 1.0, 0.0, 0.0, 1.0], abs=1e-5)


@pytest.mark.parametrize("log_alpha", [-2.0, 0.0, 1.5])
def test_the_open_chance_is_that_of_the_samples_and_not_pi(log_alpha: float) -> None:
    # S7: 1 - CDF(0) = sigmoid(log_alpha + 1.5986). 200,000 draws: five sigma are 0.0056.
    chance = float(fedsparse.open_chance(torch.tensor(log_alpha)))
    assert chance == pytest.approx(1 / (1 + math.exp(-log_alpha - 1.5986)), abs=1e-5)
    z = fedsparse.hard_concrete(torch.full((200_000,), log_alpha), Key(5).uniform(200_000))
    assert float((z > 0).float().mean()) == pytest.approx(chance, abs=0.0056)


def objective(protocol: FedSparse, w: Tensor, v: Tensor, start: Tensor, prior: Tensor) -> Tensor:
    """What a client minimises beside the cross-entropy, written as in equation 9, float64."""
    log_alpha = (w.detach().norm(dim=0) - torch.nn.functional.softplus(v)) / protocol.temperature
    r = fedsparse.open_chance(log_alpha)
    theta = torch.sigmoid(prior)
    price = protocol.lambda0 * (len(w) if protocol.per == "weight" else 1) * r.sum()
    pull = (r * theta.log() + (1 - r) * (1 - theta).log()).sum()
    away = protocol.drift / 2 * (r * (w - start).square()).sum()
    return price - protocol.ce_scale * pull + away


@pytest.mark.parametrize("per", ["weight", "gate"])
def test_a_client_descends_equation_9(per: Literal["weight", "gate"]) -> None:
    # The gradient that a client adds by hand to that of the cross-entropy, here 1 everywhere.
    protocol = FedSparse(temperature=0.5, lambda0=0.3, per=per, ce_scale=0.2, drift=0.7, lr=0.1)
    seen: dict[str, Tensor] = {}

    def ones(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        return {name: torch.ones_like(value) for name, value in tree.items()}

    w = torch.tensor([[0.3, -0.4, 0.1], [0.4, 0.3, 0.2]], dtype=torch.float64)
    v = torch.tensor([0.1, -0.7, 0.4], dtype=torch.float64)
    start = {"fc1": w, "fc1.threshold": v}
    prior = protocol.log_alpha({"fc1": w}, {"fc1.threshold": v})["fc1.threshold"]

    class Spy(Adamax):
        def step(self, tree, gradient, memory):  # type: ignore[no-untyped-def]
            seen.update({f"{len(seen)}": gradient["fc1.threshold"]})
            return super().step(tree, gradient, memory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedbench.protocols.fedsparse.Adamax", Spy)
        moved, _ = protocol.local_update(start, Batches([(w, w)] * 3), ones, Key(0), {})
    wanted_w = w.clone()
    wanted_v = v.clone()
    memory = Adamax(lr=protocol.threshold_lr).init({"v": v})
    for step in range(3):
        a, b = wanted_w.clone().requires_grad_(), wanted_v.clone().requires_grad_()
        loss = a.sum() + b.sum() + objective(protocol, a, b, w, prior)
        g_w, g_v = torch.autograd.grad(loss, [a, b])
        torch.testing.assert_close(seen[f"{step}"], g_v)
        wanted_w = wanted_w - protocol.lr * g_w
        tree, memory = Adamax(lr=protocol.threshold_lr).step({"v": wanted_v}, {"v": g_v}, memory)
        wanted_v = tree["v"]
    torch.testing.assert_close(moved["fc1"], wanted_w - w)
    torch.testing.assert_close(moved["fc1.threshold"], wanted_v - v)


def test_gradients_through_gates_are_those_of_the_formulas() -> None:
    # dL/dw = g z, dL/dv = sum(g w) dz/dlog_alpha (-sigmoid(v) / T), and w is detached in pi (S8).
    protocol = FedSparse(temperature=0.5)
    w = torch.tensor([[0.3, -0.4, 0.1], [0.4, 0.3, 0.2]], dtype=torch.float64, requires_grad=True)
    v = torch.tensor([0.1, -0.7, 0.4], dtype=torch.float64, requires_grad=True)
    g = torch.tensor([[1.0, -2.0, 3.0], [0.5, 1.5, -1.0]], dtype=torch.float64)
    gated = protocol.weights({"fc1": w, "fc1.threshold": v}, {}, Key(1))["fc1"]
    d_w, d_v = torch.autograd.grad((gated * g).sum(), [w, v])
    u = Key(1).fold("fc1.threshold").uniform(3).double()
    tau = torch.nn.functional.softplus(v)
    log_alpha = (w.norm(dim=0) - tau).detach() / 0.5
    s = torch.sigmoid((torch.logit(u) + log_alpha) * 1.5)
    z = (s * 1.2 - 0.1).clamp(0, 1)
    assert bool(((z > 0) & (z < 1)).any())
    slope = 1.2 * s * (1 - s) * 1.5 * ((z > 0) & (z < 1))
    torch.testing.assert_close(gated, w * z)
    torch.testing.assert_close(d_w, g * z)
    torch.testing.assert_close(d_v, -(g * w).sum(dim=0) * slope * torch.sigmoid(v) / 0.5)


def test_the_server_climbs_toward_its_clients_and_thresholds_rise_where_gates_are_closed() -> None:
    # S1: clients have 2 where the server has 1 and all gates are open. Adam's first step is lr; a
    # minimiser that is handed the printed gradient would go down to 0.9.
    protocol = FedSparse(server_lr=0.1, server_threshold_lr=0.01, temperature=1.0)
    state = state_of([1.0, 1.0, 1.0, 1.0], [0.0, 0.0])
    aggregate = torch.tensor([1.0, 1.0, 2.0, 2.0, 2.0, 2.0])
    after = protocol.server_step(LINE, state, aggregate, 3, Key(0))
    assert after.w.tolist() == pytest.approx([1.1] * 4)
    assert after.v.tolist() == pytest.approx([-0.01] * 2)  # all open: thresholds fall
    # theta = sigmoid(sqrt 2 - ln 2) = 0.673: 0.7 of the clients are above it, 0.6 below.
    protocol = FedSparse(server_threshold_lr=0.01, temperature=1.0)
    aggregate = torch.tensor([0.7, 0.6, 0.7, 0.6, 0.7, 0.6])
    after = protocol.server_step(LINE, state, aggregate, 10, Key(0))
    assert after.v.tolist() == pytest.approx([-0.01, 0.01])
    assert after.w.tolist() == pytest.approx([1.0] * 4)  # open clients have the server's weights


def test_the_server_follows_the_gradient_of_equation_9_in_v() -> None:
    # Through the whole chain, by automatic differentiation of z log theta + (1 - z) log(1 - theta).
    protocol = FedSparse(temperature=0.5)
    state = state_of([0.3, -0.4, 0.4, 0.3], [0.1, -0.7])
    z = torch.tensor([0.25, 0.9])
    v = state.v.clone().requires_grad_()
    theta = torch.sigmoid((torch.tensor([0.5, 0.5]) - torch.nn.functional.softplus(v)) / 0.5)
    (climb,) = torch.autograd.grad((z * theta.log() + (1 - z) * (1 - theta).log()).sum(), v)
    after = protocol.server_step(LINE, state, torch.cat([z, torch.zeros(4)]), 4, Key(0))
    torch.testing.assert_close(after.adamax["m.v"], -0.1 * climb)


def test_a_ratio_of_means_is_not_the_mean_of_a_ratio() -> None:
    # S4: pi = [.9, .1], w_s = [0, 1]. Equation 10 is at rest at .1; the expectation in equation 13
    # is .0604 given that a gate is open at all. The server's gradient vanishes at .1.
    pi = [0.9, 0.1]
    w_s = [0.0, 1.0]
    ratios = {(1, 0): 0.0, (0, 1): 1.0, (1, 1): 0.5}
    chances = {
        z: math.prod(p if on else 1 - p for p, on in zip(pi, z, strict=True)) for z in ratios
    }
    expected = sum(chances[z] * r for z, r in ratios.items()) / sum(chances.values())
    assert expected == pytest.approx(0.0604, abs=5e-5)
    z, zw = sum(pi) / 2, sum(p * w for p, w in zip(pi, w_s, strict=True)) / 2
    for at, sign in ((0.1, 0.0), (0.0604, 1.0)):
        state = state_of([at, 1.0, 1.0, 1.0], [-9.0, -9.0])
        aggregate = torch.tensor([z, 0.0, zw, 0.0, z, 0.0])
        after = FedSparse(prune=False).server_step(LINE, state, aggregate, 2, Key(0))
        climb = -10 * after.adam["m.fc1"].flatten()[0]
        assert float(torch.sign(climb.round(decimals=6))) == sign


def test_a_message_is_exact_samples_of_pi_and_the_weights_behind_them() -> None:
    # Column norms 5 and 1 and T = 2: pi = 0.896 and 0.538. 4000 messages: five sigma are 0.04.
    protocol = FedSparse(temperature=2.0)
    n = 4000
    start = torch.tensor([3.0, 0.0, 4.0, 0.5, 0.0, 0.0])
    moved = torch.tensor([0.0, 0.0, 0.0, 0.5, 0.0, 0.0])
    up = sent(protocol, LINE, moved.expand(n, -1), [{"received": start}] * n)
    chances = [1 / (1 + math.exp(-(norm - math.log(2)) / 2)) for norm in (5, 1)]
    assert up.gates.float().mean(dim=0).tolist() == pytest.approx(chances, abs=0.04)
    open_rows = up.x[up.gates.all(dim=1)]
    assert open_rows[0].tolist() == [3.0, 0.0, 4.0, 1.0]


def unmoved(protocol: FedSparse, shared: Shared, down: Payload) -> Any:
    """Return the message of a client that has not moved from this broadcast."""
    received = protocol.trained(shared).flatten(protocol.receive(shared, down))
    return sent(protocol, shared, torch.zeros(1, len(received)), [{"received": received}])


def test_bytes_shrink_both_ways_when_gates_close_which_stay_closed_through_a_round() -> None:
    # NETWORK has 3 filters of 9, 12 inputs of 5, 5 inputs of 3. Dead: a filter, two inputs, an
    # input: 9 + 10 + 3 weights and 4 thresholds stay at home.
    shared = SHARED
    protocol = FedSparse()
    state = protocol.init(shared)
    state.v[[0, 3, 4, 15]] = 9.0  # thresholds far above their weights
    down = protocol.broadcast(shared, state, [0], Key(0))
    assert down.encode()[0].bits == 32 * (102 - 22 + 20 - 4) + 20
    tree = protocol.receive(shared, down)
    assert float(tree["conv1"][0].abs().sum() + tree["fc1"][:, :2].abs().sum()) == 0
    up = unmoved(protocol, shared, down)
    assert not bool(up.gates[0, [0, 3, 4, 15]].any())
    assert up.encode()[0].bits == 32 * int(up.is_open().sum()) + 20
    assert protocol.model_bits(shared, state) == 32 * 80 + 20
    everything = FedSparse(prune=False).broadcast(shared, state, [0], Key(0))
    assert everything.encode()[0].bits == 32 * 122 + 20
    clients = [dataclasses.replace(c, tree=tree) for c in example_clients(protocol, shared)]
    _, up = exchanged(protocol, shared, Schedule(2, 4), clients=clients)
    assert not bool(up.gates[:, [0, 3, 4, 15]].any())
    assert bool(up.gates.any())
    after = protocol.server_step(shared, state, up.values().mean(dim=0), 4, Key(0))
    assert float(state.w[:9].abs().min()) > 0  # the server keeps them until the round is over
    assert float(after.w[:9].abs().max()) == 0
    alive = protocol.survivors(shared, after)
    assert alive[[0, 3, 4, 15]].tolist() == [False] * 4
    assert float(protocol.model(shared, after, Key(0))["conv1"][0].abs().sum()) == 0


def test_the_deployed_model_is_pruned_but_not_multiplied_by_theta() -> None:
    protocol = FedSparse(temperature=1.0, epsilon=0.6)
    state = state_of([1.0, 0.9, 1.0, 0.1], [0.0, 0.0])  # theta = .673 and .553
    (weights,) = protocol.model(LINE, state, Key(0)).values()
    assert weights.flatten().tolist() == [1.0, 0.0, 1.0, 0.0]


def test_a_clients_own_model_is_what_it_sent_and_a_broadcast_has_the_same_bytes() -> None:
    protocol = FedSparse()
    state = FedSparse().init(SHARED)
    down, again = (protocol.broadcast(SHARED, state, ids, Key(0)) for ids in ([0], [1, 2]))
    assert same(down, again)
    up = unmoved(protocol, SHARED, down)
    own = protocol.local_model(SHARED, down, up)
    assert torch.equal(SHARED.layout.flatten(own), state.w * up.is_open()[0])


@pytest.mark.slow
@pytest.mark.edges("sign-flip:via=wire")
@pytest.mark.parametrize("attack", ["sign-flip:via=wire", "dyn-opt"])
def test_it_passes_rounds_with_attack_and_defense_and_counts_what_gates_save(attack: str) -> None:
    few = {"clients": 12, "per_round": 7, "malicious": 0.3, "epochs": 1, "rounds": 2}
    text = "fedsparse:lambda0=1.0,server_threshold_lr=0.5"
    scenario = Scenario.of(protocol=text, attack=attack, defense="trimmed-mean", **few)
    first, second = fedbench.play(scenario, device="cpu").rounds
    assert first.malicious > 0
    # Updates are [w, rest, thresholds], values [gates, w, rest]: as wide, but not the same.
    assert first.notes.get("via", "wire") == "wire"
    assert first.accepted == second.accepted == 7
    assert second.downlink_bits < first.downlink_bits
    assert second.benign_uplink_bits is not None
    assert second.benign_uplink_bits / (7 - second.malicious) < first.downlink_bits / 7


def test_biases_travel_ungated_as_updates_and_move_by_adam_too() -> None:
    shared = shared_of(LeNet5().build((1, 28, 28), 10))
    protocol = FedSparse(server_lr=0.1)
    p = shared.rest.d
    state = protocol.init(shared)
    state.w[-p:] = 0.25
    down = protocol.broadcast(shared, state, [0], Key(0))
    received = protocol.trained(shared).flatten(protocol.receive(shared, down))
    updates = torch.zeros(1, len(received))
    updates[0, shared.weights.d : shared.layout.d] = 0.5
    up = sent(protocol, shared, updates, [{"received": received}])
    assert up.rest.tolist() == [[0.5] * p]
    own = shared.layout.flatten(protocol.local_model(shared, down, up))
    assert own[-p:].tolist() == (state.w[-p:] + 0.5).tolist()
    after = protocol.server_step(shared, state, up.values()[0], 1, Key(0))
    assert (after.w[-p:] - state.w[-p:]).tolist() == pytest.approx([0.1] * p, abs=1e-5)


def test_the_opposite_of_gated_weights_keeps_the_gates() -> None:
    layers = (((1, 2), ((1, 0, 1),)),)
    gates, x = torch.tensor([[True, False]]), torch.tensor([[3.0, 0.0]])
    payload = GatedVectors(gates, x, torch.ones(1, 1), layers)
    assert payload.opposite(payload.values(), 2.0).tolist() == [[1.0, 0.0, -6.0, 0.0, -2.0]]
