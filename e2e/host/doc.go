// Package host runs programs on the machine that the tests run on, and finds what they need there: free
// ports, locks, files of the checkout.
package host
