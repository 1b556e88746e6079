"""Parts that every room stands on: errors, files, random draws, trees, order statistics."""
