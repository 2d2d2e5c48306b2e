package api

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ReportFormat is the format of a Report. A reader takes a report with another one for unknown.
const ReportFormat = 1

// Bounds of a Report. The schema has them too.
const (
	MaxRefusals     = 200
	MaxRefusalBytes = 8 << 10 // of the list in JSON
	MaxReportImage  = 512     // bytes of the name of an image
)

// A NodeReport is what pullgated has refused on a node or, in shadow mode, would have refused. It is cluster-scoped,
// has the name of the node, and is owned by the Node. It names namespaces, pods and images of all tenants.
type NodeReport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Report Report `json:"report"`
}

// A ReportMode is what the node does with a pod that has not proved access.
type ReportMode string

// The modes.
const (
	ReportShadow      ReportMode = "Shadow"      // would refuse it
	ReportEnforcing   ReportMode = "Enforcing"   // refuses it
	ReportNeverVerify ReportMode = "NeverVerify" // does not judge
)

// A Report is the content of a NodeReport. It has no credential, and no ID or hash of one. Every field is written, so
// that a merge replaces what was there.
type Report struct {
	Format        int32      `json:"format"`
	Version       string     `json:"version"`       // of pullgated
	Configuration string     `json:"configuration"` // "sha256:" and the hash that the condition of the node has
	Policies      string     `json:"policies"`      // the hash of the policy files, "" if there are none
	Mode          ReportMode `json:"mode"`
	// ObservedSince is since when pullgated has seen the calls of a kubelet without a gap. It begins again when pullgated
	// restarts, and when no kubelet was seen for five minutes.
	ObservedSince metav1.Time `json:"observedSince"`
	// Refused has a row for each pod, image and reason since ObservedSince, and at most 24 hours back.
	Refused []Refusal `json:"refused"`
	// Truncated is set if there are more rows than Refused has room for.
	Truncated bool `json:"truncated"`

	ReportTimes `json:",inline"`
}

// ReportTimes are what changes with each write.
type ReportTimes struct {
	Heartbeat metav1.Time `json:"heartbeat"` // when the report was written
	// KubeletSeen is when a kubelet was last seen to use pullgated.
	KubeletSeen metav1.Time `json:"kubeletSeen"`
}

// A Refusal is a pod that was refused an image, or would have been.
type Refusal struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"` // "" if it is not known
	Image     string `json:"image"`
	// Reason is that of the decision log, or ReasonPullDenied.
	Reason string `json:"reason"`
	// PullSecret reports whether the pod has a pull secret for the image. It was not tested: the registry decides when the
	// kubelet pulls with it, which an enforcing node has it do.
	PullSecret bool        `json:"pullSecret"`
	Count      int32       `json:"count"`
	Last       metav1.Time `json:"last"`
}

// ReasonPullDenied is the reason of a pod that had to prove access to an image on the node, and the registry denied it.
const ReasonPullDenied = "pull_denied"

// A NodeReportList is a page of NodeReports.
type NodeReportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []NodeReport `json:"items"`
}
