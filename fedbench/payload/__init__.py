"""Messages between clients and server, one file per alphabet."""

from fedbench.core.choices import Checks
from fedbench.payload.base import Payload, Spec, identical, require_same_form, same
from fedbench.payload.floats import FloatVectors
from fedbench.payload.gated import GatedVectors
from fedbench.payload.half_vectors import HalfVectors
from fedbench.payload.levels import Levels
from fedbench.payload.masks import BinaryMasks
from fedbench.payload.mixture import MixtureVectors
from fedbench.payload.noise_masks import NoiseMasks
from fedbench.payload.pruned import PrunedVectors
from fedbench.payload.rankings import Rankings, ranking, reputation
from fedbench.payload.residues import Residues
from fedbench.payload.rotated_levels import RotatedLevels
from fedbench.payload.scaled_signs import ScaledSigns
from fedbench.payload.secure_sum import summed_bits
from fedbench.payload.seeded_sparse import SeededSparse
from fedbench.payload.signs import SignBits
from fedbench.payload.sparse import SparseVectors
from fedbench.payload.top_rankings import TopRankings

__all__ = [
    "BinaryMasks",
    "Checks",
    "FloatVectors",
    "GatedVectors",
    "HalfVectors",
    "Levels",
    "MixtureVectors",
    "NoiseMasks",
    "Payload",
    "PrunedVectors",
    "Rankings",
    "Residues",
    "RotatedLevels",
    "ScaledSigns",
    "SeededSparse",
    "SignBits",
    "SparseVectors",
    "Spec",
    "TopRankings",
    "identical",
    "ranking",
    "reputation",
    "require_same_form",
    "same",
    "summed_bits",
]
