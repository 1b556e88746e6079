"""What holds for every test."""

import torch

# A second thread gains nothing at this size and waits for ever where the core is taken.
torch.set_num_threads(1)
