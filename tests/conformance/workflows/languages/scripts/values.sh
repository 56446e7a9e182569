#!/usr/bin/env bash
echo "${snakemake_input[0]} ${snakemake_params[word]} ${snakemake[threads]} $OMP_NUM_THREADS" \
    > "${snakemake_output[0]}"
echo "${snakemake[rule]} $(pwd)" >> "${snakemake_output[0]}"
