package cip

import (
	"fmt"
	"reflect"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/internal/policies/requirement/internal/policyfile"
)

// document is a policy as it is written.
type document = policyfile.Document[spec]

type spec struct {
	Images      []image     `json:"images"`
	Authorities []authority `json:"authorities"`
	Mode        *string     `json:"mode"`
	Match       *[]match    `json:"match"`
}

type image struct {
	Glob string `json:"glob"`
}

type match struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
}

type authority struct {
	Name             *string    `json:"name"`
	Key              *keyRef    `json:"key"`
	Keyless          *keyless   `json:"keyless"`
	Static           *static    `json:"static"`
	Source           *[]source  `json:"source"`
	CTLog            *log       `json:"ctlog"`
	RFC3161Timestamp *timestamp `json:"rfc3161timestamp"`
	SignatureFormat  *string    `json:"signatureFormat"`
}

type keyRef struct {
	Data          *string `json:"data"`
	HashAlgorithm *string `json:"hashAlgorithm"`
}

type keyless struct {
	URL               *string    `json:"url"`
	Identities        []identity `json:"identities"`
	CACert            *keyRef    `json:"ca-cert"`
	InsecureIgnoreSCT *bool      `json:"insecureIgnoreSCT"`
}

type identity struct {
	Issuer        *string `json:"issuer"`
	IssuerRegExp  *string `json:"issuerRegExp"`
	Subject       *string `json:"subject"`
	SubjectRegExp *string `json:"subjectRegExp"`
}

type static struct {
	Action  *string `json:"action"`
	Message string  `json:"message"`
}

type source struct {
	OCI *string `json:"oci"`
}

type log struct {
	URL *string `json:"url"`
}

type timestamp struct{}

// trustRoots is what to do instead of a reference to a TrustRoot.
const trustRoots = "references to a TrustRoot are not supported; remove it, and add the content to the file trustedRoot of the configuration of pullgate-policyd"

func newDecoder() *strictyaml.Decoder {
	noTrustRoot := policyfile.Refuse(map[string]string{"trustRootRef": trustRoots})
	return &strictyaml.Decoder{RefuseNull: true, Rewrites: map[reflect.Type]func(*strictyaml.Mapping){
		reflect.TypeFor[document](): policyfile.IgnoreServerFields,
		reflect.TypeFor[spec]():     refusePolicy,
		reflect.TypeFor[match](): policyfile.Refuse(map[string]string{
			"selector": "selectors of labels are not supported; remove it, or write the policy as a ClusterPolicy of kyverno.io/v1 with namespaces",
		}),
		reflect.TypeFor[authority](): policyfile.Refuse(map[string]string{
			"attestations": "not supported yet; remove it, and the authority requires a signature of the image",
		}),
		reflect.TypeFor[keyRef](): policyfile.Refuse(map[string]string{
			"kms":       "KMS is not supported, because only the registry is asked; write the public key in data, as cosign public-key --key prints it",
			"secretRef": "references to Secrets are not supported; write the content of the Secret in data",
		}),
		reflect.TypeFor[keyless](): noTrustRoot, reflect.TypeFor[log](): noTrustRoot, reflect.TypeFor[timestamp](): noTrustRoot,
		reflect.TypeFor[source](): policyfile.Refuse(map[string]string{
			"signaturePullSecrets": "not supported; pullgate-policyd uses the credentials that the field credentials of its configuration selects",
			"tagPrefix":            "not supported; signatures are found by the names that cosign gives them",
		}),
	}}
}

// refusePolicy reports a policy in a language, by the name of the language.
func refusePolicy(m *strictyaml.Mapping) {
	policy, ok := m.Fields["policy"]
	if !ok {
		return
	}
	delete(m.Fields, "policy")
	language := "policies in a language"
	if p, ok := policy.(map[any]any); ok {
		switch p["type"] {
		case "cue":
			language = "CUE"
		case "rego":
			language = "Rego"
		}
	}
	m.Errorf("policy", "%s", fmt.Sprintf("not supported: %s; write who must sign in authorities, or in a ClusterPolicy of kyverno.io/v1 with count", language))
}
