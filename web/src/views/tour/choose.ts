/** How a chapter asks for another layer, head or token: values of its options, null to leave it open. */
export type Choose = (part: Record<string, string | null>) => void;
