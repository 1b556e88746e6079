"""What travels: one file per alphabet."""

from fedbench.payload.base import Checks, Payload, Spec, require_same_form, same
from fedbench.payload.floats import FloatVectors
from fedbench.payload.gated import GatedVectors
from fedbench.payload.masks import BinaryMasks
from fedbench.payload.mixture import MixtureVectors
from fedbench.payload.noise_masks import NoiseMasks
from fedbench.payload.rankings import Rankings, ranking, reputation
from fedbench.payload.signs import SignBits
from fedbench.payload.sparse import SparseVectors
from fedbench.payload.top_rankings import TopRankings

__all__ = [
    "BinaryMasks",
    "Checks",
    "FloatVectors",
    "GatedVectors",
    "MixtureVectors",
    "NoiseMasks",
    "Payload",
    "Rankings",
    "SignBits",
    "SparseVectors",
    "Spec",
    "TopRankings",
    "ranking",
    "reputation",
    "require_same_form",
    "same",
]
