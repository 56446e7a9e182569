"""Jobs by hand: commands and single runs of experiments, from the command line and from Python."""
