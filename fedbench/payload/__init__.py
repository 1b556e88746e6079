"""Messages between clients and server: alphabets, packets and codes."""

from fedbench.core.choices import Checks
from fedbench.payload.base import Payload, Spec, identical, joined, require_same_form, same
from fedbench.payload.bits import BinaryMasks, NoiseMasks, ScaledSigns, SignBits
from fedbench.payload.few_values import FewValues
from fedbench.payload.floats import FloatVectors, HalfVectors, MixtureVectors
from fedbench.payload.folded import FoldedMessages, has_bits_alone
from fedbench.payload.kept import KeptMessages, mixed_rows
from fedbench.payload.levels import Levels
from fedbench.payload.patches import CoordinatedPatches, Patch, SeededPatches, SparsePatches
from fedbench.payload.rankings import Rankings, TopRankings, ranking, reputation
from fedbench.payload.residues import SUMMED, Residues, masked_packets, sum_of_packets, summands
from fedbench.payload.rotated_levels import RotatedLevels
from fedbench.payload.scalars import History, MissedScalars, Scalars
from fedbench.payload.sparse import GatedVectors, PrunedVectors, SeededSparse, SparseVectors

__all__ = ["BinaryMasks", "Checks", "CoordinatedPatches", "FewValues", "FloatVectors"]
__all__ += ["FoldedMessages", "KeptMessages", "has_bits_alone", "mixed_rows"]
__all__ += ["GatedVectors", "HalfVectors", "History", "Levels", "MissedScalars", "MixtureVectors"]
__all__ += ["NoiseMasks", "Patch", "Payload", "PrunedVectors", "Rankings", "Residues"]
__all__ += [
    "RotatedLevels",
    "Scalars",
    "ScaledSigns",
    "SeededPatches",
    "SeededSparse",
    "SignBits",
    "SparsePatches",
    "SparseVectors",
    "Spec",
]
__all__ += ["TopRankings", "identical", "ranking", "reputation", "require_same_form", "same"]
__all__ += ["SUMMED", "joined", "masked_packets", "sum_of_packets", "summands"]
