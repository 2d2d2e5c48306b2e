// Package hidden implements bounded sets of the images that were hidden from each pod.
//
// To forget one is safe: a pull without a hidden pre-check goes to the registry.
package hidden
