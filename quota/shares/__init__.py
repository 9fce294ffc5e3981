"""One rate for several sidecars: how much of it each may use now.

Without a leader and without votes. Each member of a shared rate owns an equal part of it. What it does not need it
lends to those that need more, for a few seconds and again each second. Nobody uses what it has lent before the loan has
ended or was given back, whatever happens to messages. So the parts never sum to more than the rate, and clocks need not
agree.
"""
