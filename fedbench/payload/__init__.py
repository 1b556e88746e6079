"""Messages between clients and server: alphabets, packets and codes."""

from fedbench.core.choices import Checks
from fedbench.payload.base import Payload, Spec, identical, joined, require_same_form, same
from fedbench.payload.bits import (
    BinaryMasks,
    NoiseMasks,
    ScaledSigns,
    SignBits,
    bits_of,
    has_bits_alone,
    with_bits,
)
from fedbench.payload.few_values import FewValues
from fedbench.payload.floats import FloatVectors, HalfVectors, MixtureVectors
from fedbench.payload.folded import FoldedMessages
from fedbench.payload.kept import KeptMessages, Rows, mixed_rows, tiles_of
from fedbench.payload.levels import Levels
from fedbench.payload.packets import Packet
from fedbench.payload.patches import CoordinatedPatches, Patch, SeededPatches, SparsePatches
from fedbench.payload.rankings import Rankings, TopRankings, ranking, reputation
from fedbench.payload.residues import SUMMED, Residues, masked_packets, sum_of_packets, summands
from fedbench.payload.rotated_levels import RotatedLevels
from fedbench.payload.scalars import History, MissedScalars, Scalars
from fedbench.payload.sparse import GatedVectors, PrunedVectors, SeededSparse, SparseVectors

__all__ = [
    "SUMMED",
    "BinaryMasks",
    "Checks",
    "CoordinatedPatches",
    "FewValues",
    "FloatVectors",
    "FoldedMessages",
    "GatedVectors",
    "HalfVectors",
    "History",
    "KeptMessages",
    "Levels",
    "MissedScalars",
    "MixtureVectors",
    "NoiseMasks",
    "Packet",
    "Patch",
    "Payload",
    "PrunedVectors",
    "Rankings",
    "Residues",
    "RotatedLevels",
    "Rows",
    "Scalars",
    "ScaledSigns",
    "SeededPatches",
    "SeededSparse",
    "SignBits",
    "SparsePatches",
    "SparseVectors",
    "Spec",
    "TopRankings",
    "bits_of",
    "has_bits_alone",
    "identical",
    "joined",
    "masked_packets",
    "mixed_rows",
    "ranking",
    "reputation",
    "require_same_form",
    "same",
    "sum_of_packets",
    "summands",
    "tiles_of",
    "with_bits",
]
