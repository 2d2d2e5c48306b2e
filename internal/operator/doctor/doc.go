// Package doctor inspects a node from outside the daemon: which endpoint its kubelet dials and which file sets it, and
// checks of files, sockets and processes, and of the daemon's status if it answers.
//
// The package changes nothing. A state that cannot be determined is Unknown and never OK, and every finding that is not
// OK has a remediation in one sentence. No check prevents another one, and none waits longer than a few seconds.
//
// # What sets the socket that a kubelet dials
//
// The later line takes precedence.
//
//	the kubelet's default                     unix:///run/containerd/containerd.sock
//	--config FILE                             containerRuntimeEndpoint, imageServiceEndpoint
//	--config-dir DIR                          the same in every *.conf below it, in lexical order
//	flags                                     --container-runtime-endpoint, --image-service-endpoint; the last of each
//
// Where a systemd unit runs the kubelet, its flags are the last ExecStart= of the unit file and its drop-ins, with the
// variables of Environment= and EnvironmentFile= put in. A node of kubeadm has them in kubeadm-flags.env.
//
// k3s and RKE2 run the kubelet themselves. Its flags are the values of kubelet-arg, those of config.yaml before those
// of config.yaml.d/*.yaml, in the order of the names, before those of k3s's own command line. A key in such a file
// replaces the value of files before it, and adds to it if it ends with "+". Their own container-runtime-endpoint is
// different: it also keeps k3s from starting its containerd.
package doctor
