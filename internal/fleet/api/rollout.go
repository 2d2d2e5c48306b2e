package api

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The group and its version.
const (
	Group   = "fleet.pullgate.dev"
	Version = "v1alpha1"
)

// A Mode is what pullgate does on the nodes of a Rollout.
type Mode string

// The modes.
const (
	ModeShadow  Mode = "Shadow"  // records proofs, and denies nothing
	ModeEnforce Mode = "Enforce" // denies pods that have not proved access
	ModeOff     Mode = "Off"     // is not installed
)

// A Rollout installs a version of pullgate on the nodes that it selects, in waves. It is cluster-scoped.
type Rollout struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   RolloutSpec   `json:"spec"`
	Status RolloutStatus `json:"status,omitzero"`
}

// A RolloutSpec is what the nodes shall have, and how fast. The schema sets the defaults.
type RolloutSpec struct {
	// Version is that of the programs in the image, as in v1.2.3.
	Version string `json:"version"`
	// Image has the programs; "" means that of the dispatcher, which must have the same version.
	Image string `json:"image,omitempty"`
	// NodeSelector selects Linux nodes by their labels; an empty one selects all.
	NodeSelector *metav1.LabelSelector `json:"nodeSelector"`
	Mode         Mode                  `json:"mode"`
	// Configuration is a PullgateConfiguration in YAML. Mode decides about noPullImageSecretRecheck.
	Configuration string `json:"configuration,omitempty"`

	// Waves are numbers of nodes, or shares of those that are selected, as in "10%". The last one repeats.
	Waves []intstr.IntOrString `json:"waves,omitempty"`
	// Soak is the time between two waves.
	Soak metav1.Duration `json:"soak,omitzero"`
	// FailureBudget is how many nodes, or which share of those that are selected, may fail without an end of the rollout.
	FailureBudget *intstr.IntOrString `json:"failureBudget,omitempty"`
	// Paused begins nothing on further nodes. What has begun is finished.
	Paused bool `json:"paused,omitempty"`
	// Retry is any text. Another one makes nodes that failed be tried again, beginning with the first wave.
	Retry string `json:"retry,omitempty"`

	// ConfirmWithin is how long a node waits for its confirmation before it takes everything back.
	ConfirmWithin metav1.Duration `json:"confirmWithin,omitzero"`
	// Probation is how long pullgated has to run on the node after the confirmation.
	Probation metav1.Duration `json:"probation,omitzero"`
	// PublicKey is a key in PEM by which nodes verify the signatures of the programs. Unsigned installs without it.
	PublicKey string `json:"publicKey,omitempty"`
	Unsigned  bool   `json:"unsigned,omitempty"`
	// ReplaceKey lets a node take another key, or none, than the version that it has.
	ReplaceKey bool `json:"replaceKey,omitempty"`
	// InstallFolder is where the nodes keep the programs. It cannot be changed.
	InstallFolder string `json:"installFolder,omitempty"`
	// StartupTaint removes StartupTaint from nodes when pullgate has the mode there.
	StartupTaint bool `json:"startupTaint,omitempty"`
	// Purge also removes the records of pulls when pullgate is taken off a node.
	Purge bool `json:"purge,omitempty"`
}

// The defaults of a Rollout, which its schema has too, and of a Request.
const (
	DefaultInstallFolder = "/opt/pullgate"
	DefaultConfirmWithin = 2 * time.Minute
	DefaultProbation     = time.Minute
)

// A RolloutStatus is what the dispatcher knows of a Rollout. It is also the dispatcher's memory of the waves.
type RolloutStatus struct {
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Phase is one of the constants that begin with Phase.
	Phase   string `json:"phase,omitempty"`
	Message string `json:"message,omitempty"`

	// Plan identifies the part of the spec that the waves carry out, and PlanStarted is when they began.
	Plan        string      `json:"plan,omitempty"`
	PlanStarted metav1.Time `json:"planStarted,omitzero"`
	// Wave is the number of the wave, from 1; WaveEnded is when its nodes were done.
	Wave      int32       `json:"wave,omitempty"`
	WaveEnded metav1.Time `json:"waveEnded,omitzero"`
	// WavesDone is set when no node is left for a wave. Others are changed one at a time from then on.
	WavesDone bool `json:"wavesDone,omitempty"`

	Nodes NodeCounts `json:"nodes"`
	// Failures are the first ten, in the order of time.
	Failures []Failure `json:"failures,omitempty"`
	// Skipped are the first ten names of nodes that wait because they are not ready.
	Skipped    []string           `json:"skipped,omitempty"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Phases of a Rollout.
const (
	PhaseInvalid     = "Invalid"
	PhaseProgressing = "Progressing"
	PhaseSoaking     = "Soaking"
	PhasePaused      = "Paused"
	PhaseStopped     = "Stopped" // more failures than the budget
	PhaseWaiting     = "Waiting" // all nodes that are left are not ready, or have failed within the budget
	PhaseComplete    = "Complete"
)

// Types of the conditions of a Rollout.
const (
	ConditionComplete = "Complete"
	ConditionConflict = "Conflict" // nodes that it selects belong to an older Rollout
)

// NodeCounts are numbers of nodes. Selected is the sum of those that follow it, without Leaving.
type NodeCounts struct {
	Selected        int32 `json:"selected"`
	Installed       int32 `json:"installed"` // or, with the mode Off, not installed
	Updating        int32 `json:"updating"`
	Failed          int32 `json:"failed"`
	SkippedNotReady int32 `json:"skippedNotReady"`
	Pending         int32 `json:"pending"`
	Unknown         int32 `json:"unknown"` // were installed, and their condition does not say so
	Leaving         int32 `json:"leaving"` // are no longer selected, and still installed
}

// A Failure is what an operator reads about a node on which a change has failed. Texts of the node are cut to 1 KiB.
type Failure struct {
	Node    string      `json:"node"`
	Stage   string      `json:"stage"`
	Message string      `json:"message"` // what the node said
	State   string      `json:"state"`   // what was taken back
	Next    string      `json:"next"`    // the command to go on
	Time    metav1.Time `json:"time"`    // when it was recorded
	Attempt string      `json:"attempt"` // its number is unique for the node
	Pod     string      `json:"pod"`     // in the namespace of the dispatcher
}

// What the dispatcher writes on Nodes and pods. A kubelet can change all of it on its own Node, and nothing on others.
const (
	// ClaimLabel is on a Node that has pullgate or gets it; its value is the name of the Rollout. It is on pods too.
	ClaimLabel = Group + "/rollout"
	// InstalledAnnotation is an Installed in JSON, on a Node.
	InstalledAnnotation = Group + "/installed"
	// AttemptAnnotation is an Attempt in JSON, on a Node: the one that runs or, if it has an outcome, the last one.
	AttemptAnnotation = Group + "/attempt"
	// RequestAnnotation is a Request in JSON, on a pod.
	RequestAnnotation = Group + "/request"
	// ConfirmAnnotation is the ID of the attempt, on a pod, when the dispatcher confirms it.
	ConfirmAnnotation = Group + "/confirm"
	// Finalizer is on a Rollout until pullgate is taken off its nodes.
	Finalizer = Group + "/take-off"
)

// StartupTaint returns the taint with which a node can join, so that no pod runs there before pullgate does.
func StartupTaint() corev1.Taint {
	return corev1.Taint{Key: Group + "/not-ready", Effect: corev1.TaintEffectNoSchedule}
}

// An Installed is what a node has.
type Installed struct {
	Version       string `json:"version"`
	Mode          Mode   `json:"mode"`
	Configuration string `json:"configuration"` // the SHA-256 of the text, in hex
	MachineID     string `json:"machineID"`
	Attempt       string `json:"attempt"`
}

// An Action is what a pod does on its node.
type Action string

// The actions.
const (
	ActionInstall  Action = "Install"  // a version, also in place of another one
	ActionRemove   Action = "Remove"   // everything but the records
	ActionRollback Action = "Rollback" // the version before the installed one
)

// A Request is one change of a node. Its JSON is the annotation of the installing pod, and a file on the host.
type Request struct {
	Attempt string `json:"attempt"` // names the change; the same one is not run twice
	Action  Action `json:"action"`
	Version string `json:"version,omitempty"`
	Mode    Mode   `json:"mode,omitempty"` // never ModeOff
	// Configuration is the YAML of pullgated's configuration, without noPullImageSecretRecheck, which Mode decides.
	Configuration string `json:"configuration,omitempty"`
	MachineID     string `json:"machineID,omitempty"` // the change is refused on another machine; "" is any
	NodeName      string `json:"nodeName,omitempty"`  // for messages
	// Durations as in 90s; "" is the default.
	ConfirmWithin string `json:"confirmWithin,omitempty"`
	Probation     string `json:"probation,omitempty"`
	Settle        string `json:"settle,omitempty"` // how long the kubelet has to stay healthy after its restart
	PublicKey     string `json:"publicKey,omitempty"`
	Unsigned      bool   `json:"unsigned,omitempty"`   // signatures are not verified
	ReplaceKey    bool   `json:"replaceKey,omitempty"` // another key than that of the installed version is accepted
	Purge         bool   `json:"purge,omitempty"`      // ActionRemove removes the records too
}

// An Outcome is how an attempt has ended. "" means that it runs.
type Outcome string

// The outcomes. A pod says the first five.
const (
	OutcomeInstalled  Outcome = "Installed"
	OutcomeRemoved    Outcome = "Removed"
	OutcomeTakenBack  Outcome = "TakenBack"  // the node is as before
	OutcomeFailed     Outcome = "Failed"     // neither: the message says what to do
	OutcomeNotStarted Outcome = "NotStarted" // nothing was changed
	OutcomeUnknown    Outcome = "Unknown"    // the node did not say one in time
	OutcomeAbandoned  Outcome = "Abandoned"  // its pod is gone, and the spec has changed since
)

// LastWords are the termination message of a pod. They are text of the node: only it is harmed by a lie in them.
type LastWords struct {
	Attempt string  `json:"attempt"`
	Stage   string  `json:"stage"`
	Outcome Outcome `json:"outcome"`
	Message string  `json:"message"`
	Version string  `json:"version"`
	Former  string  `json:"former"`
}

// An Attempt is one try to change a node. It is written on the Node before its pod is made.
type Attempt struct {
	Rollout   string      `json:"rollout"` // the UID
	Number    int64       `json:"number"`
	Plan      string      `json:"plan"`
	Wave      int32       `json:"wave,omitempty"` // 0 for one outside of waves
	MachineID string      `json:"machineID"`
	BootID    string      `json:"bootID,omitempty"`   // of the node when the present pod was decided on
	Restarts  int32       `json:"restarts,omitempty"` // of the node, each with another pod
	Action    Action      `json:"action"`
	Version   string      `json:"version,omitempty"`
	Mode      Mode        `json:"mode,omitempty"`
	Hash      string      `json:"configuration,omitempty"` // the SHA-256 of the text, in hex
	Started   metav1.Time `json:"started"`
	Deadline  metav1.Time `json:"deadline"`

	Outcome Outcome     `json:"outcome,omitempty"`
	Stage   string      `json:"stage,omitempty"`
	Ended   metav1.Time `json:"ended,omitzero"`
}

// ConditionHeartbeat is how old the node's condition may be; a node writes it every 15 minutes.
const ConditionHeartbeat = 30 * time.Minute

// Copy returns a status that shares nothing with s.
func (s RolloutStatus) Copy() RolloutStatus {
	s.Failures, s.Skipped, s.Conditions = slices.Clone(s.Failures), slices.Clone(s.Skipped), slices.Clone(s.Conditions)
	return s
}

// Phases returns what the phase of a status can be.
func Phases() []string {
	return []string{
		PhaseInvalid, PhaseProgressing, PhaseSoaking, PhasePaused, PhaseStopped, PhaseWaiting, PhaseComplete,
	}
}

// Outcomes returns how an attempt can end.
func Outcomes() []Outcome {
	return []Outcome{
		OutcomeInstalled, OutcomeRemoved, OutcomeTakenBack, OutcomeFailed, OutcomeNotStarted, OutcomeUnknown,
		OutcomeAbandoned,
	}
}
