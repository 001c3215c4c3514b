"""Classifies each old live mail: waiting, in flight, lost and so on. Changes no mail.

The verdicts are those of `model.verdicts`, each with its reason.
"""
