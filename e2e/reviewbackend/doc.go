// Package reviewbackend is an image review backend of tests: an HTTPS server with an authority of its own, which
// answers and fails as it is instructed for each image, and records all requests.
package reviewbackend
