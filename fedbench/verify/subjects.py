"""Rules of other projects that are tried, and what each is compared with."""

from dataclasses import dataclass

F = 2  # malicious rows of 11; n >= 4 f + 3, so that Bulyan is defined


@dataclass(frozen=True)
class Subject:
    """A rule of another project, and our rule of the same definition.

    Args:
        text: The foreign rule as ``--defense`` takes it.
        ours: Our rule, with the same parameters.
        paper: Where it is defined.
        tolerates: Far rows that the definition survives.
        shifts: Whether a vector added to all rows should come back added to the answer.
        exact: Whether its paper defines one answer, and ours is it: not a few steps towards one,
            nor a rule that ours changes.
        untied: Rows of one dimension that are compared, where ties decide on most others.
    """

    text: str
    ours: str
    paper: str
    tolerates: int = F
    shifts: bool = True
    exact: bool = True
    untied: tuple[float, ...] = ()


KRUM = "Blanchard et al., NeurIPS 2017, section 4: n - f - 2 neighbours"
TRIMMED = "Yin et al., ICML 2018, Definition 2"
MEDIAN = "Yin et al., ICML 2018, Definition 1"
BULYAN = "El Mhamdi et al., ICML 2018, section 4: Krum again after each pick"
MEAN_AROUND = "Xie et al., 2018, arXiv:1802.10116, mean around median"
GEOMETRIC = "Pillutla et al., 2022, arXiv:1912.13445"
NORMS = "Gupta and Vaidya, 2020: the n - f rows of least norm"
CLIP = "Karimireddy et al., ICML 2021, centered clipping: from the last answer, at first from 0"
EIGENVALUE = "Allouah et al., ICML 2023, arXiv:2302.04787, SMEA: the largest eigenvalue"
FILTER = "Allouah et al., ICML 2025, arXiv:2505.01874, Algorithm 2: the dominant eigenvector"

# Bulyan's last picks are between rows with equal scores. Here every order of them has the answer
# 10: a search over all of them found these rows.
UNTIED = (15.0, -15.0, -5.0, 13.0, -20.0, -13.0, 0.0, 19.0, 6.0, 11.0, -14.0)

SUBJECTS = {
    "flwr": (
        Subject("flwr:FedAvg", "mean", "McMahan et al., AISTATS 2017, Algorithm 1", 0),
        Subject("flwr:FedMedian", "median", MEDIAN),
        Subject(f"flwr:FedTrimmedAvg,f={F}", f"trimmed-mean:f={F}", TRIMMED),
        Subject(f"flwr:Krum,f={F}", f"krum:f={F}", KRUM),
        Subject(f"flwr:MultiKrum,f={F},m=5", f"multi-krum:f={F},m=5", KRUM),
        Subject(f"flwr:Bulyan,f={F}", f"bulyan:f={F}", BULYAN, untied=UNTIED),
    ),
    "byzfl": (
        Subject("byzfl:Median", "median", MEDIAN),
        Subject(f"byzfl:TrMean,f={F}", f"trimmed-mean:f={F}", TRIMMED),
        Subject(f"byzfl:Meamed,f={F}", f"meamed:f={F}", MEAN_AROUND),
        Subject(f"byzfl:Krum,f={F}", f"krum:f={F}", KRUM),
        Subject(f"byzfl:MultiKrum,f={F}", f"multi-krum:f={F}", KRUM),
        Subject("byzfl:Average", "mean", "the mean", tolerates=0),
        Subject("byzfl:GeometricMedian", "geometric-median", GEOMETRIC, exact=False),
        Subject("byzfl:GeometricMedian,nu=1e-6,T=200", "geometric-median", GEOMETRIC),
        Subject("byzfl:CenteredClipping,tau=1", "centered-clipping:tau=1", CLIP, shifts=False),
        Subject(f"byzfl:SMEA,f={F}", f"smea:f={F}", EIGENVALUE),
        Subject(f"byzfl:CAF,f={F}", f"caf:f={F}", FILTER, exact=False),
    ),
    "byzpy": (
        Subject("byzpy:CoordinateWiseMedian", "median", MEDIAN),
        Subject(f"byzpy:CoordinateWiseTrimmedMean,f={F}", f"trimmed-mean:f={F}", TRIMMED),
        Subject(f"byzpy:MeanOfMedians,f={F}", f"meamed:f={F}", MEAN_AROUND),
        Subject(f"byzpy:Krum,f={F}", f"krum:f={F}", KRUM),
        Subject(f"byzpy:MultiKrum,f={F}", f"multi-krum:f={F}", KRUM),
        Subject("byzpy:GeometricMedian", "geometric-median", GEOMETRIC),
        Subject(
            "byzpy:CenteredClipping,c_tau=1,M=1", "centered-clipping:tau=1", CLIP, shifts=False
        ),
        Subject(f"byzpy:SMEA,f={F}", f"smea:f={F}", EIGENVALUE),
        Subject(f"byzpy:CAF,f={F}", f"caf:f={F}", FILTER, exact=False),
        Subject(
            f"byzpy:ComparativeGradientElimination,f={F}",
            f"cge:f={F}",
            NORMS,
            tolerates=F,
            shifts=False,
        ),
    ),
}

DIAMETER = "many subsets have an equal diameter, and the paper does not say which one wins"
TRUSTED = "it trusts one row by its number, which no rule here does"

UNTRIED = {
    "flwr": {},
    "byzfl": {"MDA": DIAMETER, "MoNNA": TRUSTED},
    "byzpy": {"MinimumDiameterAveraging": DIAMETER, "MoNNA": TRUSTED},
}
