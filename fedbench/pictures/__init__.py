"""What results look like: pictures for pages, sketches for terminals, one style for all."""
