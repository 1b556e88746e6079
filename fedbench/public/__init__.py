"""Functions that `import fedbench` offers: play a scenario, or many, from Python."""
