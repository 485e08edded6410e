"""Calibration: measures honest work to set the limits of statistical checks per model, engine and type.

honest    files as honest nodes make them, of any engine, type and batch size
figures   what a verifier measures of them
limits    from figures to the entries of a calibration
measuring all of it for one version
"""
