"""A run that stops and goes on.

watch, pass_guard   when all ranks save, or stop
saved_state         what is kept of a pass, and how it is put back
state_keeper        what a run asks of whoever keeps its state; a run without [checkpoint] keeps none
keeper              saves while passes go on
run_facts           what its manifests say of a run
past                what an earlier run has left, and what it means for this one
lifecycle           how such a run begins, stops and ends
"""
