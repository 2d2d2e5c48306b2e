package policyfiles

import (
	"fmt"
	"reflect"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
)

// cipDocument is a policy as it is written.
type cipDocument = dialectDocument[cipSpec]

type cipSpec struct {
	Images      []cipImage     `json:"images"`
	Authorities []cipAuthority `json:"authorities"`
	Mode        *string        `json:"mode"`
	Match       *[]cipMatch    `json:"match"`
}

type cipImage struct {
	Glob string `json:"glob"`
}

type cipMatch struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
}

type cipAuthority struct {
	Name             *string       `json:"name"`
	Key              *cipKey       `json:"key"`
	Keyless          *cipKeyless   `json:"keyless"`
	Static           *cipStatic    `json:"static"`
	Source           *[]cipSource  `json:"source"`
	CTLog            *cipLog       `json:"ctlog"`
	RFC3161Timestamp *cipTimestamp `json:"rfc3161timestamp"`
	SignatureFormat  *string       `json:"signatureFormat"`
}

type cipKey struct {
	Data          *string `json:"data"`
	HashAlgorithm *string `json:"hashAlgorithm"`
}

type cipKeyless struct {
	URL               *string       `json:"url"`
	Identities        []cipIdentity `json:"identities"`
	CACert            *cipKey       `json:"ca-cert"`
	InsecureIgnoreSCT *bool         `json:"insecureIgnoreSCT"`
}

type cipIdentity struct {
	Issuer        *string `json:"issuer"`
	IssuerRegExp  *string `json:"issuerRegExp"`
	Subject       *string `json:"subject"`
	SubjectRegExp *string `json:"subjectRegExp"`
}

type cipStatic struct {
	Action  *string `json:"action"`
	Message string  `json:"message"`
}

type cipSource struct {
	OCI *string `json:"oci"`
}

type cipLog struct {
	URL *string `json:"url"`
}

type cipTimestamp struct{}

// trustRoots is what to do instead of a reference to a TrustRoot.
const trustRoots = "references to a TrustRoot are not supported; remove it, and add the content to the file trustedRoot of the configuration of pullgate-policyd"

func cipDecoder() *strictyaml.Decoder {
	noTrustRoot := refuseFields(map[string]string{"trustRootRef": trustRoots})
	return &strictyaml.Decoder{RefuseNull: true, Rewrites: map[reflect.Type]func(*strictyaml.Mapping){
		reflect.TypeFor[cipDocument](): ignoreServerFields,
		reflect.TypeFor[cipSpec]():     refuseCIPPolicy,
		reflect.TypeFor[cipMatch](): refuseFields(map[string]string{
			"selector": "selectors of labels are not supported; remove it, or write the policy as a ClusterPolicy of kyverno.io/v1 with namespaces",
		}),
		reflect.TypeFor[cipAuthority](): refuseFields(map[string]string{
			"attestations": "not supported yet; remove it, and the authority requires a signature of the image",
		}),
		reflect.TypeFor[cipKey](): refuseFields(map[string]string{
			"kms":       "KMS is not supported, because only the registry is asked; write the public key in data, as cosign public-key --key prints it",
			"secretRef": "references to Secrets are not supported; write the content of the Secret in data",
		}),
		reflect.TypeFor[cipKeyless](): noTrustRoot, reflect.TypeFor[cipLog](): noTrustRoot, reflect.TypeFor[cipTimestamp](): noTrustRoot,
		reflect.TypeFor[cipSource](): refuseFields(map[string]string{
			"signaturePullSecrets": "not supported; pullgate-policyd uses the credentials that the field credentials of its configuration selects",
			"tagPrefix":            "not supported; signatures are found by the names that cosign gives them",
		}),
	}}
}

// refuseCIPPolicy reports a policy in a language, by the name of the language.
func refuseCIPPolicy(m *strictyaml.Mapping) {
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
