// Package samples implements random pods and PodRestrictions for tests, and the reasons for which a node may deny what
// admission admits.
package samples
