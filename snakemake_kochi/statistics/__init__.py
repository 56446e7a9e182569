"""Intervals, comparisons and stopping rules for repeated measurements, with numpy alone.

Values are floats in any unit, in the order in which they were measured. Confidence and `until` are
fractions: 0.95, 0.02. `python -m bench statistics` measures what each rule promises.
"""
