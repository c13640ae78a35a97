"""What a chat template writes after a generated turn, derived from renders of the template alone.

No family of models is known here: every fact is probed with words that no conversation holds.
"""
