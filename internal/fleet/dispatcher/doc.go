// Package dispatcher implements pullgate-dispatcher: it installs pullgate on the nodes that Rollouts select, in waves,
// by one pod for a node and attempt.
//
// What it knows is at the API server alone: the waves in the status of the Rollout, an attempt on its Node before the
// attempt's pod is made, the outcome on the Node before the pod is deleted. So a process that is killed anywhere is
// continued by the next one, which makes a pod of the same name again.
//
// One loop, in the replica that leads, takes a snapshot of everything (a world), decides what has to be written without
// any I/O (world.decide), writes it, and waits until its caches have what it wrote.
package dispatcher
