"""Reading results from Python: records as data frames, figures and tables for papers."""
