// Package hidden remembers, in memory and within bounds, what was hidden from which pod.
//
// What it forgets is on the safe side: a pull that no hidden pre-check explains goes to the registry.
package hidden
