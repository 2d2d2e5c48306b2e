// Package restrict implements the validator of the admission chain that compares pods with PodRestrictions.
package restrict
