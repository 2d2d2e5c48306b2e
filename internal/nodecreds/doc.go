// Package nodecreds knows which credentials the node itself offers, to every pod.
//
// They come from docker configuration files, such as the kubelet's /var/lib/kubelet/config.json, and from
// credential provider plugins, whose answers are reported. A pull that succeeds with one of them
// proves nothing about the pod, and opens the image to all pods of the node.
//
// The files are read every few seconds as a whole, and nothing is ever kept of a file beyond its last
// content: what is gone, cut off or malformed offers nothing. Reading beats a notification here: it sees
// a rename, the exchange of a symlink further up, and a file system that tells of nothing, and costs a few
// microseconds. Credentials are held as IDs.
package nodecreds
