"""Rules that compare the directions of rows: AlignIns and clipped clustering, by hand."""

import dataclasses

import pytest
import torch
from rules import answer, draw, floats, view_of
from torch import Tensor

from fedbench.payload import FloatVectors
from fedbench_defenses.alignins import AlignIns, typical
from fedbench_defenses.clipped_clustering import ClippedClustering, larger_cluster

ANY = 1e6  # standard deviations: a score that decides nothing


def aligned(rule: AlignIns, rows: FloatVectors, model: list[float]) -> tuple[list[float], Tensor]:
    """The answer to rows of a round whose broadcast is this model, and which rows count."""
    view = dataclasses.replace(view_of(rows), broadcast=floats(model))
    out = answer(rule, rows, view).tolist()
    assert view.findings.kept is not None
    return out, view.findings.kept


def test_alignins_leaves_out_who_is_off_the_median_cosine_and_clips_to_the_median_norm() -> None:
    # Cosines with the model 1, 0.71, 0, -1: median 0.35, deviation 0.77, so the last is out. The
    # norms that are left are 2, 1.41, 3, and 3 is clipped to 2; to 2.5 with the last one's.
    rows = floats([2, 0], [1, 1], [0, 3], [-5, 0])
    out, kept = aligned(AlignIns(mpsa=ANY), rows, [7, 0])
    assert kept.tolist() == [True, True, True, False]
    assert out == pytest.approx([1, 1])


def test_alignins_looks_at_the_signs_of_the_largest_values_alone() -> None:
    # All principal signs are positive, though the first column has the sum -30. Of their two
    # largest values these rows have 1, 1, 1 and 0 with that sign. Of all values 7/8, 7/8, 5/8 and
    # 6/8, by which the third would be out.
    a = [4.0, 3, 1, 1, 1, 1, 1, -1]
    b = [3.0, 4, 1, 1, 1, 1, -1, 1]
    c = [3.0, 3, -1, -1, -1, 1, 1, 1]
    e = [-40.0, -4, 1, 1, 1, 1, 1, 1]
    model = [1.0] * 8
    _, kept = aligned(AlignIns(share=0.25, tda=ANY), floats(a, b, c, e), model)
    assert kept.tolist() == [True, True, True, False]
    _, kept = aligned(AlignIns(share=1.0, tda=ANY), floats(a, b, c, e), model)
    assert kept.tolist() == [True, True, False, True]


def test_alignins_with_nobody_left_answers_zero_and_says_so() -> None:
    rows = floats([1, 0], [-1, 1])
    view = dataclasses.replace(view_of(rows), broadcast=floats([1, 0]))
    assert answer(AlignIns(tda=0.5, mpsa=ANY), rows, view).tolist() == [0, 0]
    assert view.findings.notes["fell_back"] == "nobody is typical"


def test_typical_scores_are_near_the_median_in_deviations_of_the_round() -> None:
    # Median 0.5, mean 1, deviation 1.22, with ddof 1 it is 1.41: 3 is 2.04 of them off the median.
    assert typical(torch.tensor([0.0, 0, 1, 3]), 2.0).tolist() == [True, True, True, False]
    assert typical(torch.tensor([0.0, 0, 1, 3]), 2.1).all()


def test_scores_that_are_equal_are_all_typical() -> None:
    assert typical(torch.tensor([0.3, 0.1 + 0.2, 0.3], dtype=torch.float64), 0.0).all()


def test_clipped_clustering_clips_to_the_median_norm_of_all_rounds() -> None:
    # Norms 1, 2, 10, then 1, 4, 1: medians 2 and, of all six, 1.5. The third row is alone.
    rule = ClippedClustering()
    first = floats([1, 0], [2, 0], [0, 10])
    view = view_of(first)
    out, state = rule.aggregate(first, rule.init(first.spec), view)
    assert view.findings.kept is not None
    assert view.findings.kept.tolist() == [True, True, False]
    assert out.tolist() == pytest.approx([1.5, 0])
    second = floats([1, 0], [4, 0], [0, 1])
    out, state = rule.aggregate(second, state, view_of(second))
    assert out.tolist() == pytest.approx([1.25, 0])  # by this round's median, 1, it would be 1
    assert state.tolist() == [1, 2, 10, 1, 4, 1]


def test_clipped_clustering_averages_both_of_two_equal_clusters_whatever_their_order() -> None:
    x = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    for rows in (x, x[[2, 0, 3, 1]]):
        assert answer(ClippedClustering(), rows).tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("seed", range(5))
def test_the_larger_cluster_is_that_of_average_linkage(seed: int) -> None:
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    x = draw(seed, 11, 3).double()
    distances = torch.cdist(x, x).fill_diagonal_(0)
    labels = fcluster(linkage(squareform(distances.numpy()), "average"), 2, "maxclust")
    larger = torch.from_numpy(labels == (1 if 2 * (labels == 1).sum() > len(labels) else 2))
    assert larger_cluster(distances).tolist() == larger.tolist()
