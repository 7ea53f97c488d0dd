"""The paper's experiments as data: Figures 5 to 9, each with its full and its short version."""
