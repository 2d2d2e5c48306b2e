// Package nodecreds implements the set of credentials that the node itself offers to every pod.
//
// They come from docker configuration files, such as the kubelet's /var/lib/kubelet/config.json, and from
// credential provider plugins, whose answers are reported. A pull that succeeds with one of them
// proves nothing about the pod, and opens the image to all pods of the node.
//
// The package reads each file as a whole every few seconds, and keeps only its last content: a file that is absent,
// truncated or malformed offers nothing. Polling is better than a notification here: it detects a rename and a changed
// symlink in a parent directory, works on a file system without notifications, and costs a few microseconds.
// Credentials are stored as IDs.
package nodecreds
