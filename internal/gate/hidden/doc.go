// Package hidden implements bounded sets of the images that the gate hid from each pod.
//
// Removing an entry is safe: a pull without a hidden pre-check goes to the registry.
package hidden
