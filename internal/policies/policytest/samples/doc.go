// Package samples generates pods and policy files for tests that compare what an admission webhook and a node say about them, and lists the
// reasons why a node denies more.
package samples
