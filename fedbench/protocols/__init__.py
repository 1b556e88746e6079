"""The federated protocols, one file each."""
