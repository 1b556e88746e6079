"""Experiment trackers that follow runs: MLflow, TensorBoard, Weights & Biases."""
