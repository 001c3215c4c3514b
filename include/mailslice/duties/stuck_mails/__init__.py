"""Sets aside or recovers mails whose holder lives and hangs; discards records of dead workers."""
