package policyfiles

import (
	"reflect"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
)

// The kinds of policies with conditions in CEL.
const (
	IVPKind           = "ImageValidatingPolicy"
	NamespacedIVPKind = "NamespacedImageValidatingPolicy"
)

func ivpVersions() []string { return []string{"policies.kyverno.io/v1", "policies.kyverno.io/v1beta1"} }

type ivpDocument = dialectDocument[ivpSpec]

type ivpSpec struct {
	MatchConstraints         *ivpConstraints  `json:"matchConstraints"`
	MatchConditions          []ivpExpression  `json:"matchConditions"`
	MatchImageReferences     []ivpImage       `json:"matchImageReferences"`
	Variables                []ivpExpression  `json:"variables"`
	Attestors                []ivpAttestor    `json:"attestors"`
	Attestations             []ivpAttestation `json:"attestations"`
	Validations              []ivpValidation  `json:"validations"`
	ValidationActions        []string         `json:"validationActions"`
	ValidationConfigurations struct {
		MutateDigest *bool `json:"mutateDigest"`
		VerifyDigest *bool `json:"verifyDigest"`
		Required     *bool `json:"required"`
	} `json:"validationConfigurations"`
	FailurePolicy        *string `json:"failurePolicy"`
	WebhookConfiguration struct {
		TimeoutSeconds *int64 `json:"timeoutSeconds"`
	} `json:"webhookConfiguration"`
	AuditAnnotations []ivpAnnotation `json:"auditAnnotations"`
	Credentials      any             `json:"credentials"`
	Evaluation       struct {
		Mode      *string `json:"mode"`
		Admission struct {
			Enabled *bool `json:"enabled"`
		} `json:"admission"`
		Background any `json:"background"`
	} `json:"evaluation"`
	Autogen struct {
		PodControllers struct {
			Controllers *[]string `json:"controllers"`
		} `json:"podControllers"`
	} `json:"autogen"`
}

type ivpConstraints struct {
	ResourceRules     []ivpResource `json:"resourceRules"`
	MatchPolicy       *string       `json:"matchPolicy"`
	NamespaceSelector *ivpSelector  `json:"namespaceSelector"`
}

type ivpResource struct {
	APIGroups   []string `json:"apiGroups"`
	APIVersions []string `json:"apiVersions"`
	Operations  []string `json:"operations"`
	Resources   []string `json:"resources"`
	Scope       *string  `json:"scope"`
}

type ivpSelector struct {
	MatchLabels      map[string]string `json:"matchLabels"`
	MatchExpressions []struct {
		Key      string   `json:"key"`
		Operator string   `json:"operator"`
		Values   []string `json:"values"`
	} `json:"matchExpressions"`
}

type ivpExpression struct {
	Name       string `json:"name"`
	Expression string `json:"expression"`
}

type ivpValidation struct {
	Expression        string `json:"expression"`
	Message           string `json:"message"`
	MessageExpression string `json:"messageExpression"`
	Reason            any    `json:"reason"`
}

type ivpAnnotation struct {
	Key             string `json:"key"`
	ValueExpression string `json:"valueExpression"`
}

type ivpImage struct {
	Glob       *string `json:"glob"`
	Expression *string `json:"expression"`
}

type ivpAttestor struct {
	Name   string     `json:"name"`
	Cosign *ivpCosign `json:"cosign"`
}

type ivpCosign struct {
	Key         *writtenKey `json:"key"`
	Keyless     *ivpKeyless `json:"keyless"`
	Certificate *struct {
		Cert      *ivpText `json:"cert"`
		CertChain *ivpText `json:"certChain"`
	} `json:"certificate"`
	Source *struct {
		Repository *string `json:"repository"`
	} `json:"source"`
	CTLog *struct {
		URL                *string `json:"url"`
		RekorPubKey        *string `json:"rekorPubKey"`
		CTLogPubKey        *string `json:"ctLogPubKey"`
		TSACertChain       *string `json:"tsaCertChain"`
		InsecureIgnoreTlog *bool   `json:"insecureIgnoreTlog"`
		InsecureIgnoreSCT  *bool   `json:"insecureIgnoreSCT"`
	} `json:"ctlog"`
}

type ivpKeyless struct {
	Identities []identity `json:"identities"`
	Roots      *string    `json:"roots"`
}

type ivpText struct {
	Value *string `json:"value"`
}

type ivpAttestation struct {
	Name   string `json:"name"`
	InToto *struct {
		Type *string `json:"type"`
	} `json:"intoto"`
}

func ivpDecoder() *strictyaml.Decoder {
	var cosign ivpCosign
	const expression = "keys and certificates cannot be read from the cluster; write the text itself"
	return &strictyaml.Decoder{RefuseNull: true, Rewrites: map[reflect.Type]func(*strictyaml.Mapping){
		reflect.TypeFor[ivpDocument](): ignoreServerFields,
		reflect.TypeFor[ivpSpec](): refuse("images",
			"not supported; the images of a pod are known, and those of custom resources are not verified"),
		reflect.TypeFor[ivpConstraints](): refuse("objectSelector",
			"selectors of labels are not supported; write a condition on object.metadata.labels in matchConditions",
			"excludeResourceRules", "not supported; write the resources in resourceRules"),
		reflect.TypeFor[ivpResource](): refuse("resourceNames", "not supported; remove it"),
		reflect.TypeFor[ivpAttestor](): refuse("notary", "notation is not supported; sign with cosign, and write cosign"),
		reflect.TypeFor[ivpCosign](): refuse("tuf trustedRoot", "not supported; remove it, and add the content to the file "+
			"trustedRoot of the configuration of pullgate-policyd",
			"annotations", "annotations of signatures are not supported; remove it"),
		reflect.TypeFor[writtenKey](): refuse("kms", "KMS is not supported, because only the registry is asked; write "+
			"the public key in data, as cosign public-key --key prints it",
			"secretRef", "references to Secrets are not supported; write the public key in data", "expression", expression),
		reflect.TypeFor[ivpText](): refuse("expression", expression),
		reflect.TypeOf(cosign.Source).Elem(): refuse("PullSecrets pullSecrets signaturePullSecrets", "not supported; "+
			"pullgate-policyd uses the credentials that the field credentials of its configuration selects",
			"tagPrefix", "not supported; signatures are found by the names that cosign gives them"),
		reflect.TypeFor[ivpAttestation](): refuse("referrer", "artifacts that are no in-toto statement are not supported; "+
			"write intoto"),
	}}
}
