// Package certtest makes certificates for tests: an authority, and the certificates and keys that it issues to servers and clients.
package certtest
