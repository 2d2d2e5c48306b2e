// Package registry implements the registry client of signature verification. It reads manifests, blobs and lists of
// referrers, checks content against its digest, and bounds what a registry can make it do: size, number of entries,
// redirects and time. Nothing that it returns is trusted further than that: a tag, a media type and a list of
// referrers are what a registry says.
//
// Registries are asked as containerd asks them. The folder of containerd's registry configuration (certs.d) names the
// hosts of a registry, their order, certificates and capabilities; see [Options] and the table of differences below.
//
//	a GET      host 1 of hosts.toml → host 2 → … → server
//	           401: the challenge decides between Basic and a bearer token, then the request is repeated once
//	           redirect: blobs only, at most maxRedirects, never from https to http, without credential and header
//
// Differences from containerd, each to the safe side:
//   - An invalid hosts.toml is an error. containerd logs it and asks the registry itself.
//   - A credential is sent to the registry itself, to "server", and to hosts that may resolve tags. containerd sends it
//     to each host that asks for it, also to a host that a blob request was redirected to.
//   - The values of "header" are sent to the host alone, not to its token server.
//   - A token server is asked over https, unless its registry is asked over http, and no redirect of it is followed. It
//     may be another host. If it is an IP address that is private, its address and port must be those of the registry.
//   - Redirects and token servers never lead to loopback, link-local and metadata addresses, unless the registry itself
//     is on loopback. With Options.Untrusted, neither does the registry of an image, unless the folder names it.
package registry
