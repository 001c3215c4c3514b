"""Says of each old live mail where it is: waiting, delayed, held, in flight, dead-lettered, lost, ghost, bare, or unknown and why. Changes no mail."""
