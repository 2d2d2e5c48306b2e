package hook

// OpenFor is how long a circuit is open.
const OpenFor = openFor
