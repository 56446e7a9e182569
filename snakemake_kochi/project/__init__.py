"""kochi.yaml and experiments, from their texts to points.

document         YAML with the line of each key; problems; one file over another, key by key
shape            what a key may be and how it is read, by the schemas; short forms
values           names, values and paths: what they may be, and their form in files and variables
expressions      `$x`, and expressions in backticks
configuration    finds and reads kochi.yaml: machines, recipes (dependencies, projects); sent (of
                 another computer), launchers, clean_rules
experiment_file  reads an experiment: grid (batches, points, requests); plots, also metrics
sweeps           parameters as they are written, series, combinations
experiment       makes the points, no two of which write one file
checks           names without a meaning, what scripts do not see
conditions       `-w n=100`

Import from the modules, not from here: every run of a batch imports this package, thousands of
times. A run makes its own point by `grid`, which loads neither YAML nor what makes grids.
"""
